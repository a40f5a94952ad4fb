// SPDX-License-Identifier: Apache-2.0
// A block keeps a thousand rows of the heads that read a kv head in shared memory and goes over the pages that any
// of them wants. A warpgroup takes a page: it lists the rows that want it, gathers 64 of them at a time from shared
// memory as the A operand, multiplies them with the page's keys and keeps the largest product of each row. So only
// wanted pairs are multiplied, rounded up to 64 rows a page, and keys are read once for a thousand rows.
//
// The result of a row depends only on the row and the keys: not on the other rows, nor on how pages
// are divided among blocks.
#include "kernels/cuda/sm90/estimation/adaptive/page_scan.h"

#include <algorithm>
#include <climits>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/aligned_shared.cuh"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/estimation/tile_products.cuh"
#include "kernels/cuda/sm90/ptx/named_barrier.cuh"
#include "kernels/cuda/sm90/ptx/ring_cursor.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kPageKeys = static_cast<int>(kPageTokens);
// One warpgroup loads, the others scan: as many as have registers for their rows and products. Threads of six
// warpgroups start with 80 registers, those of five with 96; the last two numbers redistribute no more than that.
template <int kHeadDim>
struct ScanGroups {
  static constexpr int kScanners = kHeadDim == 256 ? 4 : 5;
  static constexpr int kThreads = (kScanners + 1) * kGroupThreads;
  static constexpr int kProducerRegisters = kScanners == 4 ? 32 : 24;
  static constexpr int kScannerRegisters = kScanners == 4 ? 112 : 88;
};

// Pages that a block scans: at most, and at least, so that short prompts fill the GPU too.
constexpr int kMaxRangePages = 1024;
constexpr int kMinRangePages = 64;

template <int kHeadDim>
struct alignas(1024) ScanShared {
  // As many rows as leave room for pages.
  static constexpr int kUnits = kHeadDim == 256 ? 8 : 16;
  static constexpr int kRows = kUnits * kUnitRows;
  static constexpr int kScanners = ScanGroups<kHeadDim>::kScanners;
  // A multiple of kScanners: a stage is always read by the same warpgroup. Otherwise one that is ahead would take the
  // end of a stage's round before last for that of the last.
  static constexpr int kStages = kHeadDim == 256 ? kScanners : 2 * kScanners;
  static_assert(kStages % kScanners == 0);
  static constexpr int kKeyBytes = kHeadDim < 128 ? kHeadDim : 128;  // of a key, in a panel
  static constexpr uint32_t kKeyPanelBytes = kPageKeys * kKeyBytes;
  static constexpr uint32_t kStageBytes = kPageKeys * kHeadDim;

  std::byte stages[kStages][kStageBytes];
  alignas(16) int8_t rows[kRows][kHeadDim];
  float row_scales[kRows];
  int64_t unit_masses[kUnits];        // where the masses of a unit's first row begin
  const uint64_t* unit_rows[kUnits];  // ScannedPages::of_units of a unit
  int32_t unit_ends[kUnits];          // of the pages that the filter has judged for its rows
  uint16_t wanted[kScanners][kRows];
  int32_t warp_counts[kScanners][4];
  uint16_t pages[kMaxRangePages];  // of the range, that a row wants
  int32_t num_pages;
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t rows_full;
};

// What a block scans.
template <int kUnits>
struct ScanBlock {
  HeadsOfKv kv;
  int32_t first_unit;  // among the units of all heads of the kv head, the longest first
  int32_t num_units;
  int32_t first_page;
  int32_t end_page = 0;  // of the range, that any of its units may see

  __device__ ScanBlock(const ScanBatch& batch, int32_t range_pages)
      : kv(batch.kv_heads[blockIdx.z]),
        first_unit(static_cast<int32_t>(blockIdx.x) * kUnits),
        num_units(max(min(batch.num_units(kv) - first_unit, kUnits), 0)),
        first_page(static_cast<int32_t>(blockIdx.y) * range_pages) {
    for (int i = 0; i < num_units; ++i) end_page = max(end_page, filtered_end(batch, i));
    end_page = min(end_page, first_page + range_pages);
  }

  // The end of the pages that the filter has judged for a unit's rows.
  __device__ int32_t filtered_end(const ScanBatch& batch, int number) const {
    const int32_t pages = batch.units[batch.unit(kv, first_unit + number)].most;
    return (pages + kGroupPages - 1) / kGroupPages * kGroupPages;
  }
};

// Called by all threads.
template <int kHeadDim>
__device__ void describe_units(ScanShared<kHeadDim>& shared, const ScanBatch& batch,
                               const ScanBlock<ScanShared<kHeadDim>::kUnits>& block,
                               const ScannedPages& scanned) {
  for (int i = static_cast<int>(threadIdx.x); i < block.num_units * kUnitRows;
       i += ScanGroups<kHeadDim>::kThreads) {
    const int number = i / kUnitRows;
    const int64_t unit = batch.unit(block.kv, block.first_unit + number);
    const int64_t head = batch.head(block.kv, block.first_unit + number);
    const int64_t row = unit * kUnitRows + i % kUnitRows;
    const int64_t row_of_all = head * batch.num_rows() + row;
    shared.row_scales[i] = row < batch.num_rows() ? batch.row_scale8(row_of_all) : 0;
    if (i % kUnitRows != 0) continue;
    shared.unit_masses[number] = row_of_all * batch.page_stride;
    shared.unit_rows[number] =
        scanned.of_units + (head * batch.num_units() + unit) * batch.page_stride;
    shared.unit_ends[number] = block.filtered_end(batch, number);
  }
}

// Lists the pages that any row wants. Called by all threads.
template <int kHeadDim>
__device__ void list_pages(ScanShared<kHeadDim>& shared,
                           const ScanBlock<ScanShared<kHeadDim>::kUnits>& block) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int32_t warp_first = block.first_page + static_cast<int32_t>(threadIdx.x) - lane;
  for (int32_t first = warp_first; first < block.end_page;
       first += ScanGroups<kHeadDim>::kThreads) {
    const int32_t page = first + lane;
    uint64_t rows = 0;
    for (int i = 0; i < block.num_units; ++i) {
      if (page < min(shared.unit_ends[i], block.end_page)) rows |= shared.unit_rows[i][page];
    }
    const uint32_t wanted = __ballot_sync(~0U, rows != 0);
    int32_t at = 0;
    if (lane == 0 && wanted != 0) at = atomicAdd(&shared.num_pages, __popc(wanted));
    at = __shfl_sync(~0U, at, 0);
    if (rows != 0) {
      shared.pages[at + __popc(wanted & ((1U << lane) - 1))] =
          static_cast<uint16_t>(page - block.first_page);
    }
  }
}

// One thread.
template <int kHeadDim>
__device__ void bring_pages(ScanShared<kHeadDim>& shared, const ScanBatch& batch,
                            const ScanBlock<ScanShared<kHeadDim>::kUnits>& block,
                            const CUtensorMap& key_map) {
  using Shared = ScanShared<kHeadDim>;
  const auto rows_in = [&](int number) {
    const int64_t first = int64_t{batch.unit(block.kv, block.first_unit + number)} * kUnitRows;
    return static_cast<uint32_t>(min(batch.num_rows() - first, int64_t{kUnitRows}));
  };
  uint32_t bytes = 0;
  for (int i = 0; i < block.num_units; ++i) bytes += rows_in(i) * kHeadDim;
  ptx::barrier_arrive_expecting(&shared.rows_full, bytes);
  for (int i = 0; i < block.num_units; ++i) {
    const int64_t head = batch.head(block.kv, block.first_unit + i);
    const int64_t first = int64_t{batch.unit(block.kv, block.first_unit + i)} * kUnitRows;
    ptx::copy_bytes(ptx::shared_address(shared.rows[i * kUnitRows]),
                    batch.rows.quantised + (head * batch.num_rows() + first) * kHeadDim,
                    rows_in(i) * kHeadDim, &shared.rows_full);
  }
  RingCursor<Shared::kStages> at;
  for (int32_t number = 0; number < shared.num_pages; ++number, at.advance()) {
    ptx::barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
    ptx::barrier_arrive_expecting(&shared.full[at.stage], Shared::kStageBytes);
    const int32_t page = block.first_page + shared.pages[number];
    for (int panel = 0; panel < kHeadDim / Shared::kKeyBytes; ++panel) {
      ptx::copy_box(ptx::shared_address(shared.stages[at.stage]) + panel * Shared::kKeyPanelBytes,
                    key_map, panel * Shared::kKeyBytes, page * kPageKeys, block.kv.plane,
                    &shared.full[at.stage]);
    }
  }
}

// One warpgroup.
template <int kHeadDim>
class Scanner {
  using Shared = ScanShared<kHeadDim>;
  using Block = ScanBlock<Shared::kUnits>;
  static constexpr int kScanners = Shared::kScanners;
  static constexpr int kWords = kHeadDim / 16;  // of a row or centre, that a thread has

 public:
  __device__ Scanner(Shared& shared, const ScanBatch& batch, const Block& block, int warpgroup)
      : shared_(shared), batch_(batch), block_(block), warpgroup_(warpgroup) {}

  __device__ void run(const KeyPages& keys, MassSteps* masses) {
    ptx::barrier_wait(&shared_.rows_full, 0);
    const int32_t num_pages = ptx::uniform(shared_.num_pages);
    Page next = load_page(keys, warpgroup_, num_pages);
    for (int32_t number = warpgroup_; number < num_pages; number += kScanners) {
      const Page page = next;
      next = load_page(keys, number + kScanners, num_pages);
      const int32_t num_rows = list_rows(page.wanting_rows);
      const int stage = number % Shared::kStages;
      ptx::barrier_wait(&shared_.full[stage], static_cast<uint32_t>(number / Shared::kStages) & 1U);
      for (int32_t first = 0; first < num_rows; first += kUnitRows) {
        scan_rows(stage, first, num_rows, page, masses + page.number);
      }
      if (lane() == 0) ptx::barrier_arrive(&shared_.empty[stage]);
    }
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kGroupThreads; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarpThreads; }
  __device__ static int quarter() { return static_cast<int>(threadIdx.x) % 4; }

  // What a thread needs of a page besides its keys.
  struct Page {
    int32_t number = 0;
    uint32_t wanting_rows = 0;  // of the thread's eight rows
    VectorSteps steps;
    int centre[kWords];
  };

  // Loads the page at a place of the block's list, or nothing behind its end: a page ahead, so that nothing waits for
  // memory.
  __device__ Page load_page(const KeyPages& keys, int32_t place, int32_t num_pages) const {
    Page page;
    if (place >= num_pages) return page;
    page.number = block_.first_page + shared_.pages[place];
    const int unit = thread() / 8;
    if (unit < block_.num_units && page.number < shared_.unit_ends[unit]) {
      page.wanting_rows =
          reinterpret_cast<const uint8_t*>(shared_.unit_rows[unit] + page.number)[thread() % 8];
    }
    const int64_t first_place = block_.kv.plane * keys.pages.num_places();
    page.steps = keys.pages.steps[first_place + page.number];
    const int8_t* centre =
        keys.pages.centres + (first_place + centre_place(page.number)) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      page.centre[i] = *reinterpret_cast<const int*>(centre + 16 * i + 4 * quarter());
    }
    return page;
  }

  // Lists the rows that want a page, in order, and returns how many there are. A thread has eight rows.
  __device__ int32_t list_rows(uint32_t rows) {
    int32_t before = __popc(rows);
#pragma unroll
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      const int32_t other = __shfl_up_sync(~0U, before, distance);
      if (lane() >= distance) before += other;
    }
    const int warp = thread() / kWarpThreads;
    if (lane() == kWarpThreads - 1) shared_.warp_counts[warpgroup_][warp] = before;
    ptx::synchronise_warpgroup(warpgroup_);
    int32_t total = 0;
    int32_t at = before - __popc(rows);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i == warp) at += total;
      total += shared_.warp_counts[warpgroup_][i];
    }
    for (; rows != 0; rows &= rows - 1) {
      shared_.wanted[warpgroup_][at++] =
          static_cast<uint16_t>(8 * thread() + __ffs(static_cast<int>(rows)) - 1);
    }
    ptx::synchronise_warpgroup(warpgroup_);
    return ptx::uniform(total);
  }

  // Scans the page for 64 of the listed rows, or as many as there are.
  __device__ void scan_rows(int stage, int32_t first, int32_t num_rows, const Page& page,
                            MassSteps* masses) {
    const ScoreLayout layout;
    uint32_t rows[kHeadDim / 8];
    int32_t row_numbers[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The rows that a last product lacks repeat the last one.
      const int32_t number = min(first + layout.row(half), num_rows - 1);
      row_numbers[half] = shared_.wanted[warpgroup_][number];
      const auto* words = reinterpret_cast<const uint4*>(shared_.rows[row_numbers[half]] +
                                                         quarter() * (kHeadDim / 4));
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 four = words[i];
        rows[8 * i + half] = four.x;
        rows[8 * i + 2 + half] = four.y;
        rows[8 * i + 4 + half] = four.z;
        rows[8 * i + 6 + half] = four.w;
      }
    }
    int32_t products[kScoresPerThread];
    multiply(rows, stage, products);
    int32_t largest[2];
    int32_t centre[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int32_t best = INT_MIN;
#pragma unroll
      for (int j = 0; j < kPageKeys / 8; ++j) {
        best = max(max(best, products[4 * j + 2 * half]), products[4 * j + 2 * half + 1]);
      }
      int32_t sum = 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        sum = __dp4a(static_cast<int>(rows[2 * i + half]), page.centre[i], sum);
      }
#pragma unroll
      for (int distance = 1; distance <= 2; distance *= 2) {
        best = max(best, __shfl_xor_sync(~0U, best, distance));
        sum += __shfl_xor_sync(~0U, sum, distance);
      }
      largest[half] = best;
      centre[half] = sum;
    }
    // Of the four threads of a row, the first writes for one half of the rows, the second for the other.
    const int half = quarter() % 2;
    if (quarter() >= 2 || first + layout.row(half) >= num_rows) return;
    const int32_t row = half == 0 ? row_numbers[0] : row_numbers[1];
    masses[shared_.unit_masses[row / kUnitRows] + row % kUnitRows * batch_.page_stride] =
        mass_steps(shared_.row_scales[row], page.steps.centre, half == 0 ? centre[0] : centre[1],
                   page.steps.keys, half == 0 ? largest[0] : largest[1]);
  }

  __device__ void multiply(uint32_t (&rows)[kHeadDim / 8], int stage,
                           int32_t (&products)[kScoresPerThread]) {
    ptx::fence_operand(products);
    ptx::fence_operand(rows);
    ptx::wgmma_fence();
    const uint32_t at = ptx::uniform(ptx::shared_address(shared_.stages[stage]));
    const uint64_t b =
        kHeadDim == 64 ? ptx::narrow_matrix_descriptor(at) : ptx::matrix_descriptor(at, 16);
#pragma unroll
    for (int k = 0; k < kHeadDim / 32; ++k) {
      const uint64_t offset = (k / 4 * Shared::kKeyPanelBytes + k % 4 * 32) / 16;
      ptx::wgmma_int8_64(products, rows + 4 * k, b + offset, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products);
  }

  Shared& shared_;
  const ScanBatch& batch_;
  const Block& block_;
  int warpgroup_;
};

template <int kHeadDim>
__global__ void __launch_bounds__(ScanGroups<kHeadDim>::kThreads, 1)
    page_scan_kernel(const __grid_constant__ ScanBatch batch, const __grid_constant__ KeyPages keys,
                     const __grid_constant__ CUtensorMap key_map,
                     const __grid_constant__ ScannedPages scanned, MassSteps* masses,
                     int32_t range_pages) {
  using Shared = ScanShared<kHeadDim>;
  using Groups = ScanGroups<kHeadDim>;
  auto& shared = aligned_shared<Shared>();
  const ScanBlock<Shared::kUnits> block(batch, range_pages);
  if (block.num_units == 0 || block.first_page >= block.end_page) return;
  if (threadIdx.x == 0) {
    shared.num_pages = 0;
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::barrier_init(&shared.full[i], 1);
      ptx::barrier_init(&shared.empty[i], kGroupThreads / kWarpThreads);
    }
    ptx::barrier_init(&shared.rows_full, 1);
    ptx::fence_barrier_init();
  }
  describe_units(shared, batch, block, scanned);
  __syncthreads();
  list_pages(shared, block);
  __syncthreads();
  if (shared.num_pages == 0) return;
  const int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  if (warpgroup == Groups::kScanners) {
    ptx::warpgroup_reg_dealloc<Groups::kProducerRegisters>();
    if (threadIdx.x == Groups::kScanners * kGroupThreads)
      bring_pages(shared, batch, block, key_map);
  } else {
    ptx::warpgroup_reg_alloc<Groups::kScannerRegisters>();
    Scanner<kHeadDim>(shared, batch, block, warpgroup).run(keys, masses);
  }
}

}  // namespace

void launch_page_scan(const ScanBatch& batch, const KeyPages& keys, const CUtensorMap& key_map,
                      const ScannedPages& scanned, MassSteps* masses, cudaStream_t stream) {
  const int64_t units = batch.num_units() * batch.max_heads;
  for_head_dim(batch.head_dim, [&](auto head_dim) {
    using Shared = ScanShared<head_dim()>;
    const int64_t chunks = (units + Shared::kUnits - 1) / Shared::kUnits * batch.num_kv_heads;
    // Some four blocks for each multiprocessor of an H100.
    constexpr int64_t kBlocks = 4 * 132;
    int64_t range = kMaxRangePages;
    while (range > kMinRangePages && chunks * ((batch.page_stride + range - 1) / range) < kBlocks) {
      range /= 2;
    }
    const dim3 grid(static_cast<unsigned>((units + Shared::kUnits - 1) / Shared::kUnits),
                    static_cast<unsigned>((batch.page_stride + range - 1) / range),
                    static_cast<unsigned>(batch.num_kv_heads));
    constexpr int kBytes = kAlignedSharedBytes<Shared>;
    MR_CUDA_CHECK(cudaFuncSetAttribute(page_scan_kernel<head_dim()>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    page_scan_kernel<head_dim()><<<grid, ScanGroups<head_dim()>::kThreads, kBytes, stream>>>(
        batch, keys, key_map, scanned, masses, static_cast<int32_t>(range));
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
