// SPDX-License-Identifier: Apache-2.0
// A block keeps some 900 rows of the heads that read a kv head in shared memory and goes over the pages that any of
// them wants. A warpgroup takes a page: it lists the rows that want it, gathers 64 of them at a time from shared memory
// as the A operand, multiplies them with the page's keys and keeps the largest product of each row. So only wanted pairs
// are multiplied, rounded up to 64 rows a page, and keys are read once for all rows.
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
#include "kernels/cuda/sm90/ptx/load_matrix.cuh"
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
  static constexpr int kProducerRegisters = kScanners == 4 ? 32 : 40;
  static constexpr int kScannerRegisters = kScanners == 4 ? 112 : 88;
};

// Pages that a block scans: at most, and at least, so that short prompts fill the GPU too.
constexpr int kMaxRangePages = 1024;
constexpr int kMinRangePages = 64;

template <int kHeadDim>
struct alignas(1024) ScanShared {
  // As many rows as leave room for pages.
  static constexpr int kUnits = kHeadDim == 256 ? 8 : 14;
  static constexpr int kRows = kUnits * kUnitRows;
  static constexpr int kScanners = ScanGroups<kHeadDim>::kScanners;
  // A multiple of kScanners: a stage is always read by the same warpgroup. Otherwise one that is ahead would take the
  // end of a stage's round before last for that of the last.
  static constexpr int kStages = kHeadDim == 256 ? kScanners : 2 * kScanners;
  static_assert(kStages % kScanners == 0);
  static constexpr int kKeyBytes = kHeadDim < 128 ? kHeadDim : 128;  // of a key, in a panel
  static constexpr uint32_t kKeyPanelBytes = kPageKeys * kKeyBytes;
  static constexpr uint32_t kStageBytes = kPageKeys * kHeadDim;
  static constexpr uint32_t kRowPanelBytes = kRows * kKeyBytes;

  std::byte stages[kStages][kStageBytes];
  std::byte rows[kRows * kHeadDim];  // panels of kKeyBytes columns, swizzled
  float row_scales[kRows];
  int64_t unit_masses[kUnits];        // where the masses of a unit's first row begin
  const uint64_t* unit_rows[kUnits];  // ScannedPages::of_units of a unit
  int32_t unit_ends[kUnits];          // of the pages that the filter has judged for its rows
  uint16_t pages[kMaxRangePages];     // of the range, that a row wants
  uint16_t wanting_rows[kScanners][2][kRows];  // of a scanner's page, and of its last or next one
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
      if (page < min(shared.unit_ends[i], block.end_page))
        rows |= __ldg(shared.unit_rows[i] + page);
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
                            const PageScanMaps& maps) {
  using Shared = ScanShared<kHeadDim>;
  constexpr int kPanels = kHeadDim / Shared::kKeyBytes;
  constexpr int kUnitBytes = kUnitRows * Shared::kKeyBytes;
  ptx::barrier_arrive_expecting(&shared.rows_full,
                                static_cast<uint32_t>(block.num_units) * kUnitRows * kHeadDim);
  for (int i = 0; i < block.num_units; ++i) {
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::copy_box(
          ptx::shared_address(shared.rows) + panel * Shared::kRowPanelBytes + i * kUnitBytes,
          maps.rows, panel * Shared::kKeyBytes,
          batch.unit(block.kv, block.first_unit + i) * kUnitRows,
          batch.head(block.kv, block.first_unit + i), &shared.rows_full);
    }
  }
  RingCursor<Shared::kStages> at;
  for (int32_t number = 0; number < shared.num_pages; ++number, at.advance()) {
    ptx::barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
    uint64_t* full = &shared.full[at.stage];
    ptx::barrier_arrive_expecting(full, Shared::kStageBytes);
    const int32_t page = block.first_page + shared.pages[number];
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::copy_box(ptx::shared_address(shared.stages[at.stage]) + panel * Shared::kKeyPanelBytes,
                    maps.keys, panel * Shared::kKeyBytes, page * kPageKeys, block.kv.plane, full);
    }
  }
}

// One warpgroup.
template <int kHeadDim>
class Scanner {
  using Shared = ScanShared<kHeadDim>;
  static constexpr int kScanners = Shared::kScanners;
  static constexpr int kSlices = kHeadDim / 32;  // of a row, that a product takes at once

 public:
  __device__ Scanner(Shared& shared, const ScanBatch& batch, const ScanBlock<Shared::kUnits>& block,
                     const KeyMoments& moments, int warpgroup)
      : shared_(shared), page_stride_(batch.page_stride), warpgroup_(warpgroup) {
    const int64_t first_place = block.kv.plane * moments.num_places();
    const int unit = lane() / 2;
    first_page_ = block.first_page;
    steps_ = moments.steps + first_place;
    centres_ =
        reinterpret_cast<const int32_t*>(moments.centres + first_place * kHeadDim) + quarter();
    if (unit >= block.num_units) return;
    filtered_end_ = shared.unit_ends[unit];
    filtered_ = reinterpret_cast<const uint32_t*>(shared.unit_rows[unit]) + lane() % 2;
  }

  __device__ void run(MassSteps* masses) {
    ptx::barrier_wait(&shared_.rows_full, 0);
    const int32_t num_pages = ptx::uniform(shared_.num_pages);
    Page next = load_page(warpgroup_, num_pages);
    int list = 0;
    for (int32_t place = warpgroup_; place < num_pages; place += kScanners, list ^= 1) {
      const Page page = next;
      next = load_page(place + kScanners, num_pages);
      uint16_t* rows = shared_.wanting_rows[warpgroup_][list];
      const int32_t num_rows = list_rows(page.wanting_rows, rows);
      const int stage = place % Shared::kStages;
      ptx::barrier_wait(&shared_.full[stage], static_cast<uint32_t>(place / Shared::kStages) & 1U);
      for (int32_t first = 0; first < num_rows; first += kUnitRows) {
        scan_rows(stage, page, rows, first, num_rows, masses + page.number);
      }
      if (lane() == 0) ptx::barrier_arrive(&shared_.empty[stage]);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarpThreads; }
  __device__ static int quarter() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) % kGroupThreads / kWarpThreads;
  }
  // The first row of the warp among the warpgroup's 64.
  __device__ static int warp_row() { return 16 * warp(); }

  // What a thread needs of a page besides its keys.
  struct Page {
    int32_t number = 0;
    uint32_t wanting_rows = 0;  // of the lane's 32
    VectorSteps steps;
    int32_t centre[2 * kSlices];
  };

  // Loads the page at a place of the block's list, or nothing behind its end: a page ahead, so that nothing waits for
  // memory.
  __device__ Page load_page(int32_t place, int32_t num_pages) const {
    Page page;
    if (place >= num_pages) return page;
    page.number = first_page_ + shared_.pages[place];
    if (page.number < filtered_end_) page.wanting_rows = __ldg(filtered_ + 2 * page.number);
    page.steps = steps_[page.number];
    const int32_t* centre = centres_ + centre_place(page.number) * (kHeadDim / 4);
#pragma unroll
    for (int i = 0; i < 2 * kSlices; ++i) page.centre[i] = __ldg(centre + 4 * i);
    return page;
  }

  // Lists the rows that want a page, in order, and returns how many there are. Each warp has all rows, a word of bits a
  // lane, and writes a quarter of them, a byte a lane.
  __device__ int32_t list_rows(uint32_t word, uint16_t* rows) const {
    constexpr int kWarpBytes = 2 * Shared::kUnits;
    static_assert(kWarpBytes <= kWarpThreads);  // which is also how many words there are
    int32_t end = __popc(word);
#pragma unroll
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      const int32_t before = __shfl_up_sync(~0U, end, distance);
      if (lane() >= distance) end += before;
    }
    const int32_t num_rows = __shfl_sync(~0U, end, kWarpThreads - 1);
    const int byte = warp() * kWarpBytes + lane();
    const int shift = byte % 4 * 8;
    const int32_t begin = __shfl_sync(~0U, end - __popc(word), byte / 4);
    word = __shfl_sync(~0U, word, byte / 4);
    uint16_t* out = rows + begin + __popc(word & ((1U << shift) - 1));
    const uint32_t bits = lane() < kWarpBytes ? word >> shift : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((bits & 1U << i) != 0) *out++ = static_cast<uint16_t>(8 * byte + i);
    }
    ptx::synchronise_warpgroup(warpgroup_);
    return ptx::uniform(num_rows);
  }

  // Loads the warp's 16 of 64 listed rows. The rows that a last product lacks repeat the last one.
  __device__ void gather_rows(const uint16_t* listed, int32_t first, int32_t num_rows,
                              uint32_t (&rows)[kHeadDim / 8]) const {
    const uint32_t row = listed[min(first + warp_row() + lane() % 16, num_rows - 1)];
    // The lane's row of a matrix of 16 bytes a row: the first or second half of a slice.
    const uint32_t half = static_cast<uint32_t>(lane()) / 16;
    const uint32_t swizzle = Shared::kKeyBytes == 64 ? row / 2 % 4 : row % 8;
    const uint32_t at =
        ptx::shared_address(shared_.rows) + row * Shared::kKeyBytes + ((half ^ swizzle) << 4);
#pragma unroll
    for (int k = 0; k < kSlices; ++k) {
      constexpr int kPanelSlices = Shared::kKeyBytes / 32;
      ptx::load_matrices(
          rows + 4 * k, (at ^ (k % kPanelSlices << 5)) + k / kPanelSlices * Shared::kRowPanelBytes);
    }
  }

  // Of two values, one for each of the thread's rows, combines over the four threads of a row that of row
  // quarter() % 2.
  template <typename Combine>
  __device__ static int32_t of_row(int32_t first, int32_t second, const Combine& combine) {
    const bool is_odd = quarter() % 2 != 0;
    const int32_t other = __shfl_xor_sync(~0U, is_odd ? first : second, 1);
    const int32_t both = combine(is_odd ? second : first, other);
    return combine(both, __shfl_xor_sync(~0U, both, 2));
  }

  // Scans the stage's page for 64 of the listed rows, or as many as there are.
  __device__ void scan_rows(int stage, const Page& page, const uint16_t* listed, int32_t first,
                            int32_t num_rows, MassSteps* masses) {
    uint32_t rows[kHeadDim / 8];
    gather_rows(listed, first, num_rows, rows);
    int32_t products[kScoresPerThread];
    multiply(rows, stage, products);
    int32_t largest[2];
    int32_t centre[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[half] = INT_MIN;
#pragma unroll
      for (int j = 0; j < kPageKeys / 8; ++j) {
        largest[half] =
            max(max(largest[half], products[4 * j + 2 * half]), products[4 * j + 2 * half + 1]);
      }
      centre[half] = 0;
#pragma unroll
      for (int i = 0; i < 2 * kSlices; ++i) {
        centre[half] = __dp4a(static_cast<int>(rows[2 * i + half]), page.centre[i], centre[half]);
      }
    }
    const int32_t row_largest =
        of_row(largest[0], largest[1], [](int32_t a, int32_t b) { return max(a, b); });
    const int32_t row_centre =
        of_row(centre[0], centre[1], [](int32_t a, int32_t b) { return a + b; });
    const int32_t number = first + warp_row() + lane() / 4 + quarter() % 2 * 8;
    if (quarter() >= 2 || number >= num_rows) return;
    const int32_t row = listed[number];
    masses[shared_.unit_masses[row / kUnitRows] + row % kUnitRows * page_stride_] = mass_steps(
        shared_.row_scales[row], page.steps.centre, row_centre, page.steps.keys, row_largest);
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
  int64_t page_stride_;
  int warpgroup_;
  int32_t first_page_;
  const VectorSteps* steps_;  // of the kv head
  const int32_t* centres_;    // the same, from the thread's first word on
  int32_t filtered_end_ = 0;  // of the pages that have bits for the lane's rows
  const uint32_t* filtered_ =
      nullptr;  // the bits of the lane's 32 rows: a word for each page and half a unit
};

template <int kHeadDim>
__global__ void __launch_bounds__(ScanGroups<kHeadDim>::kThreads, 1)
    page_scan_kernel(const __grid_constant__ ScanBatch batch, const __grid_constant__ KeyPages keys,
                     const __grid_constant__ PageScanMaps maps,
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
    if (threadIdx.x == Groups::kScanners * kGroupThreads) bring_pages(shared, batch, block, maps);
  } else {
    ptx::warpgroup_reg_alloc<Groups::kScannerRegisters>();
    Scanner<kHeadDim>(shared, batch, block, keys.pages, warpgroup).run(masses);
  }
}

}  // namespace

void launch_page_scan(const ScanBatch& batch, const KeyPages& keys, const PageScanMaps& maps,
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
        batch, keys, maps, scanned, masses, static_cast<int32_t>(range));
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
