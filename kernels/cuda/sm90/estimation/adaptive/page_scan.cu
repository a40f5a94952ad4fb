// SPDX-License-Identifier: Apache-2.0
// A block keeps hundreds of rows of the heads that read a kv head in shared memory and goes over the pages that any of
// them wants. A warp takes a page: it loads the keys into registers, lists the rows that want the page, and multiplies 16
// of them at a time with the keys, of which it keeps each row's largest product. So only wanted pairs are multiplied,
// rounded up to 16 rows a page, and keys are read once for all rows. A product of a warpgroup takes 64 rows: long prompts
// have too few a page.
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
#include "kernels/cuda/sm90/ptx/mma_int8.cuh"
#include "kernels/cuda/sm90/ptx/ring_cursor.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kPageKeys = static_cast<int>(kPageTokens);
constexpr int kKeyTile = 16;  // keys of a product
constexpr int kRowTile = 8;   // rows of a product
constexpr int kRowsAtOnce = 2 * kRowTile;

// Pages that a block scans: at most, and at least, so that short prompts fill the GPU too.
constexpr int kMaxRangePages = 1024;
constexpr int kMinRangePages = 64;

struct ScannedRow {
  float scale8;
  int32_t number;  // in [num_heads, num_rows]
};

template <int kHeadDim>
struct alignas(1024) ScanShared {
  // With one that loads, a multiple of four warps, as many as have registers for a page's keys. As many rows as leave
  // room for the warps' pages.
  static constexpr int kScanners = kHeadDim == 64 ? 15 : kHeadDim == 128 ? 11 : 7;
  static constexpr int kThreads = (kScanners + 1) * kWarpThreads;
  static constexpr int kUnits = kHeadDim == 64 ? 16 : kHeadDim == 128 ? 12 : 6;
  static constexpr int kRows = kUnits * kUnitRows;
  static constexpr int kVectorBytes =
      kHeadDim < 128 ? kHeadDim : 128;  // of a key or row, in a panel
  static constexpr int kPanels = kHeadDim / kVectorBytes;
  static constexpr uint32_t kKeyPanelBytes = kPageKeys * kVectorBytes;
  static constexpr uint32_t kRowPanelBytes = kRows * kVectorBytes;

  // Panels of kVectorBytes columns, swizzled.
  std::byte keys[kScanners][kPageKeys * kHeadDim];
  std::byte rows[kRows * kHeadDim];
  ScannedRow scanned_rows[kRows];
  const uint64_t* unit_rows[kUnits];        // ScannedPages::of_units of a unit
  int32_t unit_ends[kUnits];                // of the pages that the filter has judged for its rows
  uint16_t pages[kMaxRangePages];           // of the range, that a row wants
  uint16_t wanting_rows[kScanners][kRows];  // of a scanner's page
  int32_t num_pages;
  uint64_t full[kScanners];
  uint64_t empty[kScanners];
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
       i += ScanShared<kHeadDim>::kThreads) {
    const int number = i / kUnitRows;
    const int64_t unit = batch.unit(block.kv, block.first_unit + number);
    const int64_t head = batch.head(block.kv, block.first_unit + number);
    const int64_t row = unit * kUnitRows + i % kUnitRows;
    const int64_t row_of_all = head * batch.num_rows() + row;
    shared.scanned_rows[i] = {.scale8 = row < batch.num_rows() ? batch.row_scale8(row_of_all) : 0,
                              .number = static_cast<int32_t>(row_of_all)};
    if (i % kUnitRows != 0) continue;
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
       first += ScanShared<kHeadDim>::kThreads) {
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
  constexpr int kUnitBytes = kUnitRows * Shared::kVectorBytes;
  ptx::barrier_arrive_expecting(&shared.rows_full,
                                static_cast<uint32_t>(block.num_units) * kUnitRows * kHeadDim);
  for (int i = 0; i < block.num_units; ++i) {
    for (int panel = 0; panel < Shared::kPanels; ++panel) {
      ptx::copy_box(
          ptx::shared_address(shared.rows) + panel * Shared::kRowPanelBytes + i * kUnitBytes,
          maps.rows, panel * Shared::kVectorBytes,
          batch.unit(block.kv, block.first_unit + i) * kUnitRows,
          batch.head(block.kv, block.first_unit + i), &shared.rows_full);
    }
  }
  RingCursor<Shared::kScanners> at;
  for (int32_t place = 0; place < shared.num_pages; ++place, at.advance()) {
    ptx::barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
    uint64_t* full = &shared.full[at.stage];
    ptx::barrier_arrive_expecting(full, sizeof shared.keys[0]);
    const int32_t page = block.first_page + shared.pages[place];
    for (int panel = 0; panel < Shared::kPanels; ++panel) {
      ptx::copy_box(ptx::shared_address(shared.keys[at.stage]) + panel * Shared::kKeyPanelBytes,
                    maps.keys, panel * Shared::kVectorBytes, page * kPageKeys, block.kv.plane,
                    full);
    }
  }
}

// One warp.
template <int kHeadDim>
class Scanner {
  using Shared = ScanShared<kHeadDim>;
  static constexpr int kSlices = kHeadDim / 32;  // of a vector, that a product takes at once
  static constexpr int kWords = 2 * kSlices;     // of a vector, that a thread has
  static constexpr int kChunks = kWords / 4;     // 16 bytes each

 public:
  __device__ Scanner(Shared& shared, const ScanBatch& batch, const ScanBlock<Shared::kUnits>& block,
                     const KeyMoments& moments, int scanner)
      : shared_(shared),
        page_stride_(static_cast<int32_t>(batch.page_stride)),
        first_page_(block.first_page),
        scanner_(scanner) {
    const int64_t first_place = block.kv.plane * moments.num_places();
    const int unit = lane() / 2;
    steps_ = moments.steps + first_place;
    centres_ = reinterpret_cast<const uint4*>(moments.centres + first_place * kHeadDim);
    if (unit >= block.num_units) return;
    filtered_end_ = shared.unit_ends[unit];
    filtered_ = reinterpret_cast<const uint32_t*>(shared.unit_rows[unit]) + lane() % 2;
  }

  __device__ void run(MassSteps* masses) {
    ptx::barrier_wait(&shared_.rows_full, 0);
    const int32_t num_pages = shared_.num_pages;
    Page next = load_page(scanner_, num_pages);
    uint32_t parity = 0;
    for (int32_t place = scanner_; place < num_pages; place += Shared::kScanners, parity ^= 1) {
      const Page page = next;
      next = load_page(place + Shared::kScanners, num_pages);
      const int32_t num_rows = list_rows(page.wanting_rows);
      Keys keys;
      ptx::barrier_wait(&shared_.full[scanner_], parity);
      load_keys(page, keys);
      __syncwarp();
      if (lane() == 0) ptx::barrier_arrive(&shared_.empty[scanner_]);
#pragma unroll 1
      for (int32_t first = 0; first < num_rows; first += kRowsAtOnce) {
        scan_rows(page, keys, first, num_rows, masses + page.number);
      }
      __syncwarp();  // the list has been read
    }
  }

 private:
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % kWarpThreads;
  }
  __device__ static int quarter() {
    return static_cast<int>(threadIdx.x) % 4;
  }

  // What a thread needs of a page besides its keys.
  struct Page {
    int32_t number = 0;
    uint32_t wanting_rows = 0;  // of the lane's 32
    VectorSteps steps;
    uint32_t centre[kWords];
  };

  // Factors A of a page's products: its keys, and its centre as each of 16 keys.
  struct Keys {
    uint32_t tiles[kPageKeys / kKeyTile][kSlices][4];
    uint32_t centre[kSlices][4];
  };

  __device__ static void store(uint32_t* words, const uint4& four) {
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
  }

  // The place of 16 bytes of a key or row among the panels of all.
  __device__ static uint32_t swizzled(uint32_t number, uint32_t chunk, uint32_t panel_bytes) {
    constexpr uint32_t kPanelChunks = Shared::kVectorBytes / 16;
    const uint32_t swizzle = kHeadDim == 64 ? number / 2 % 4 : number % 8;
    return chunk / kPanelChunks * panel_bytes + number * Shared::kVectorBytes +
           ((chunk % kPanelChunks ^ swizzle) << 4);
  }

  // Loads the page at a place of the block's list, or nothing behind its end: a page ahead, so that nothing waits for
  // memory.
  __device__ Page load_page(int32_t place, int32_t num_pages) const {
    Page page;
    if (place >= num_pages) return page;
    page.number = first_page_ + shared_.pages[place];
    if (page.number < filtered_end_) page.wanting_rows = __ldg(filtered_ + 2 * page.number);
    page.steps = steps_[page.number];
    const uint4* centre = centres_ + centre_place(page.number) * (kHeadDim / 16);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      store(page.centre + 4 * i, __ldg(centre + kChunks * quarter() + i));
    }
    return page;
  }

  // Lists the rows that want a page, in order, and returns how many there are. A lane has the bits of 32 rows and writes
  // one byte of them after the other, the warp 32 bytes at a time.
  __device__ int32_t list_rows(uint32_t word) const {
    constexpr int kBytes = 8 * Shared::kUnits;
    int32_t end = __popc(word);
#pragma unroll
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      const int32_t before = __shfl_up_sync(~0U, end, distance);
      if (lane() >= distance) end += before;
    }
    const int32_t begin = end - __popc(word);
    const int shift = lane() % 4 * 8;
#pragma unroll
    for (int first = 0; first < kBytes; first += kWarpThreads) {
      const int byte = first + lane();
      const uint32_t of_byte = __shfl_sync(~0U, word, byte / 4);
      uint16_t* out = shared_.wanting_rows[scanner_] + __shfl_sync(~0U, begin, byte / 4) +
                      __popc(of_byte & ((1U << shift) - 1));
      const uint32_t bits = of_byte >> shift;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if ((bits & 1U << i) != 0) *out++ = static_cast<uint16_t>(8 * byte + i);
      }
    }
    __syncwarp();
    return __shfl_sync(~0U, end, kWarpThreads - 1);
  }

  __device__ void load_keys(const Page& page, Keys& keys) const {
    const uint32_t panels = ptx::shared_address(shared_.keys[scanner_]);
    const auto lane_chunk = static_cast<uint32_t>(lane()) / 16;
#pragma unroll
    for (int tile = 0; tile < kPageKeys / kKeyTile; ++tile) {
      const auto key = static_cast<uint32_t>(kKeyTile * tile + lane() % 16);
#pragma unroll
      for (int k = 0; k < kSlices; ++k) {
        ptx::load_matrices(keys.tiles[tile][k],
                           panels + swizzled(key, static_cast<uint32_t>(2 * k) + lane_chunk,
                                             Shared::kKeyPanelBytes));
      }
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      keys.centre[i / 2][i % 2 * 2] = keys.centre[i / 2][i % 2 * 2 + 1] = page.centre[i];
    }
  }

  // Loads the thread's quarter of a row.
  __device__ void load_row(uint32_t number, uint32_t (&words)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const auto chunk = static_cast<uint32_t>(kChunks * quarter() + i);
      store(words + 4 * i, *reinterpret_cast<const uint4*>(
                               shared_.rows + swizzled(number, chunk, Shared::kRowPanelBytes)));
    }
  }

  // Adds to `products` those of 16 keys with 8 rows.
  __device__ static void multiply(const uint32_t (&keys)[kSlices][4],
                                  const uint32_t (&rows)[kWords], int32_t (&products)[4]) {
#pragma unroll
    for (int k = 0; k < kSlices; ++k) {
      const uint32_t row_words[2] = {rows[2 * k], rows[2 * k + 1]};
      ptx::mma_int8(products, keys[k], row_words);
    }
  }

  // Scans the page for 16 of the listed rows, or as many as there are. The rows that a last product lacks repeat the last
  // one. Of tile t a thread has the products of rows 2 quarter() + {0, 1} with two of each 16 keys.
  __device__ void scan_rows(const Page& page, const Keys& keys, int32_t first, int32_t num_rows,
                            MassSteps* masses) const {
    const uint16_t* listed = shared_.wanting_rows[scanner_];
    int32_t largest[2][2];
    int32_t centre[2][2];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      uint32_t rows[kWords];
      load_row(listed[min(first + kRowTile * t + lane() / 4, num_rows - 1)], rows);
      largest[t][0] = largest[t][1] = INT_MIN;
#pragma unroll
      for (const auto& tile : keys.tiles) {
        int32_t products[4] = {};
        multiply(tile, rows, products);
        largest[t][0] = max(max(largest[t][0], products[0]), products[2]);
        largest[t][1] = max(max(largest[t][1], products[1]), products[3]);
      }
      int32_t products[4] = {};
      multiply(keys.centre, rows, products);
      centre[t][0] = products[0];
      centre[t][1] = products[1];
    }
    // The eight threads of the same rows share them out: bit 4 of the lane says whose tile, bit 3 which of its rows.
    const bool second_tile = (lane() & 16) != 0;
    const bool second_row = (lane() & 8) != 0;
    int32_t of_tile[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t other = __shfl_xor_sync(~0U, second_tile ? largest[0][i] : largest[1][i], 16);
      of_tile[i] = max(second_tile ? largest[1][i] : largest[0][i], other);
    }
    const int32_t other = __shfl_xor_sync(~0U, second_row ? of_tile[0] : of_tile[1], 8);
    int32_t row_largest = max(second_row ? of_tile[1] : of_tile[0], other);
    row_largest = max(row_largest, __shfl_xor_sync(~0U, row_largest, 4));
    const int32_t row_centre = second_tile ? (second_row ? centre[1][1] : centre[1][0])
                                           : (second_row ? centre[0][1] : centre[0][0]);
    const int32_t at = first + (second_tile ? kRowTile : 0) + 2 * quarter() + (second_row ? 1 : 0);
    if ((lane() & 4) != 0 || at >= num_rows) return;
    const ScannedRow row = shared_.scanned_rows[listed[at]];
    masses[int64_t{row.number} * page_stride_] =
        mass_steps(row.scale8, page.steps.centre, row_centre, page.steps.keys, row_largest);
  }

  Shared& shared_;
  int32_t page_stride_;
  int32_t first_page_;
  int scanner_;
  const VectorSteps* steps_;            // of the kv head
  const uint4* centres_;                // the same
  int32_t filtered_end_ = 0;            // of the pages that have bits for the lane's rows
  const uint32_t* filtered_ = nullptr;  // those bits: a word for each page and half a unit
};

template <int kHeadDim>
__global__ void __launch_bounds__(ScanShared<kHeadDim>::kThreads, 1)
    page_scan_kernel(const __grid_constant__ ScanBatch batch, const __grid_constant__ KeyPages keys,
                     const __grid_constant__ PageScanMaps maps,
                     const __grid_constant__ ScannedPages scanned, MassSteps* masses,
                     int32_t range_pages) {
  using Shared = ScanShared<kHeadDim>;
  auto& shared = aligned_shared<Shared>();
  const ScanBlock<Shared::kUnits> block(batch, range_pages);
  if (block.num_units == 0 || block.first_page >= block.end_page) return;
  if (threadIdx.x == 0) {
    shared.num_pages = 0;
    for (int i = 0; i < Shared::kScanners; ++i) {
      ptx::barrier_init(&shared.full[i], 1);
      ptx::barrier_init(&shared.empty[i], 1);
    }
    ptx::barrier_init(&shared.rows_full, 1);
    ptx::fence_barrier_init();
  }
  describe_units(shared, batch, block, scanned);
  __syncthreads();
  list_pages(shared, block);
  __syncthreads();
  if (shared.num_pages == 0) return;
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / kWarpThreads);
  if (warp < Shared::kScanners) {
    Scanner<kHeadDim>(shared, batch, block, keys.pages, warp).run(masses);
  } else if (threadIdx.x == Shared::kScanners * kWarpThreads) {
    bring_pages(shared, batch, block, maps);
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
    page_scan_kernel<head_dim()><<<grid, Shared::kThreads, kBytes, stream>>>(
        batch, keys, maps, scanned, masses, static_cast<int32_t>(range));
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
