// SPDX-License-Identifier: Apache-2.0
// A block loads keys once for four warpgroups, or for two if rows are 256 wide. Each warpgroup
// multiplies a unit of rows with all of the keys and keeps only the largest product of each row and
// page. While the tensor cores work for one warpgroup, the others search for their largest
// products; one thread of another warpgroup makes the copy engine load keys ahead of them. After
// each group of 64 pages their centres come through the same ring, and masses are written to
// memory.
//
// The result of a row depends only on the row and the keys: not on the other rows, nor on how pages
// are divided among blocks.
#include "kernels/cuda/sm90/estimation/adaptive/page_scan.h"

#include <climits>
#include <cmath>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/adaptive/int8_steps.cuh"
#include "kernels/cuda/sm90/estimation/aligned_shared.cuh"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/estimation/tile_products.cuh"
#include "kernels/cuda/sm90/ptx/larger.cuh"
#include "kernels/cuda/sm90/ptx/ring_cursor.cuh"

namespace millrace::kernels::cuda {
namespace {

// One warpgroup loads, the others scan. Threads of five warpgroups start with 96 registers, those
// of three with 168; the last two numbers redistribute the same total.
template <int kHeadDim>
struct ScanGroups {
  static constexpr int kScanners = kHeadDim == 256 ? 2 : 4;  // as many as have room for their rows
  static constexpr int kThreads = (kScanners + 1) * kGroupThreads;
  static constexpr int kProducerRegisters = kScanners == 4 ? 32 : 56;
  static constexpr int kScannerRegisters = kScanners == 4 ? 112 : 224;
};

// Pages that a block scans: 8 MB of keys stay in the L2 cache while all blocks multiply their rows
// with them. With 512 a scan takes 3 % longer, with 256 5 %.
constexpr int kRangePages = 1024;

// A step is a box of keys: four pages, so that each of the four threads that share a row ends with
// one page.
constexpr int kStepPages = kScanBoxKeys / static_cast<int>(kPageTokens);
static_assert(kStepPages == 4);
constexpr int kGroupSteps = kGroupPages / kStepPages;
// Keys of one product.
constexpr int kProductKeys = 128;
constexpr int kProductPages = kProductKeys / static_cast<int>(kPageTokens);
constexpr int kProductsPerThread = kUnitRows * kProductKeys / kGroupThreads;

template <int kHeadDim>
struct alignas(1024) ScanShared {
  static constexpr int kScanners = ScanGroups<kHeadDim>::kScanners;
  // As many as fit.
  static constexpr int kStages = kHeadDim == 256 ? 2 : kHeadDim == 128 ? 3 : 6;
  // Keys are in consecutive panels, which have this many bytes of each key.
  static constexpr int kKeyBytes = kHeadDim < 128 ? kHeadDim : 128;
  static constexpr uint32_t kKeyPanelBytes = kScanBoxKeys * kKeyBytes;
  static constexpr uint32_t kStageBytes = kScanBoxKeys * kHeadDim;
  static constexpr uint32_t kCentreBytes = kGroupPages * kHeadDim * 2;
  static constexpr uint32_t kRowBytes = kUnitRows * kHeadDim * 2;
  static_assert(kCentreBytes <= kStageBytes);

  std::byte stages[kStages][kStageBytes];
  std::byte rows[kScanners][kRowBytes];  // float16 panels of 64 columns, 128-byte swizzle
  // For each page of a group, the largest product of residuals, times the page's step. Each thread
  // has its own, by step and by half of its rows.
  float best[kScanners][kGroupSteps * 2][kGroupThreads];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t rows_full;
};

// What a block scans.
template <int kScanners>
struct ScanBlock {
  HeadsOfKv kv;
  int32_t first_unit;  // among the units of all heads of the kv head, the longest first
  int32_t num_units;
  int32_t first_page;
  int32_t num_pages;  // pages of the range that any of its units may see

  __device__ explicit ScanBlock(const PageScanArguments& arguments)
      : kv(arguments.kv_heads[blockIdx.z]),
        first_unit(static_cast<int32_t>(blockIdx.x) * kScanners),
        num_units(0),
        first_page(static_cast<int32_t>(blockIdx.y) * kRangePages),
        num_pages(0) {
    const auto all_units = static_cast<int32_t>(arguments.num_units()) * kv.num_heads;
    num_units = max(min(all_units - first_unit, kScanners), 0);
    for (int i = 0; i < num_units; ++i) num_pages = max(num_pages, pages_of(arguments, i));
  }

  // The unit within its head. Consecutive numbers are different heads, which see the same pages.
  __device__ int32_t unit(const PageScanArguments& arguments, int number) const {
    return static_cast<int32_t>(arguments.num_units()) - 1 - (first_unit + number) / kv.num_heads;
  }
  __device__ int32_t head(int number) const {
    return kv.first_head + (first_unit + number) % kv.num_heads;
  }
  // The number of pages of the range that the unit may see.
  __device__ int32_t pages_of(const PageScanArguments& arguments, int number) const {
    const int32_t pages = arguments.unit_pages[unit(arguments, number)] - first_page;
    return max(min(pages, kRangePages), 0);
  }
};

// One thread.
template <int kHeadDim>
__device__ void bring_pages(ScanShared<kHeadDim>& shared, const PageScanArguments& arguments,
                            const ScanBlock<ScanGroups<kHeadDim>::kScanners>& block,
                            const PageScanMaps& maps) {
  using Shared = ScanShared<kHeadDim>;
  constexpr int kPanels = kHeadDim / kPanelColumns;
  ptx::barrier_arrive_expecting(&shared.rows_full,
                                static_cast<uint32_t>(block.num_units) * Shared::kRowBytes);
  for (int i = 0; i < block.num_units; ++i) {
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::copy_box(ptx::shared_address(shared.rows[i]) + panel * kPanelBytes, maps.rows,
                    panel * kPanelColumns, block.unit(arguments, i) * kUnitRows, block.head(i),
                    &shared.rows_full);
    }
  }
  RingCursor<Shared::kStages> at;
  const auto take_stage = [&](uint32_t bytes) {
    ptx::barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
    ptx::barrier_arrive_expecting(&shared.full[at.stage], bytes);
    return ptx::shared_address(shared.stages[at.stage]);
  };
  for (int32_t group = 0; group < block.num_pages; group += kGroupPages) {
    const int32_t end = min(group + kGroupPages, block.num_pages);
    for (int32_t page = group; page < end; page += kStepPages, at.advance()) {
      const uint32_t stage = take_stage(Shared::kStageBytes);
      for (int panel = 0; panel < kHeadDim / Shared::kKeyBytes; ++panel) {
        ptx::copy_box(stage + panel * Shared::kKeyPanelBytes, maps.keys, panel * Shared::kKeyBytes,
                      (block.first_page + page) * static_cast<int>(kPageTokens), block.kv.plane,
                      &shared.full[at.stage]);
      }
    }
    const uint32_t stage = take_stage(Shared::kCentreBytes);
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::copy_box(stage + panel * kPanelBytes, maps.centres, panel * kPanelColumns,
                    block.first_page + group, block.kv.plane, &shared.full[at.stage]);
    }
    at.advance();
  }
}

// The two rows of which a thread of a warpgroup has scores.
struct ThreadRows {
  int64_t number[2];    // in [num_heads, num_rows]
  int32_t position[2];  // the last key that it may see; arbitrary for an absent row
  int32_t pages[2];     // the number of pages it may see; 0 for an absent row
  float step[2];

  __device__ ThreadRows(const PageScanArguments& arguments, int32_t unit, int32_t head) {
    const ScoreLayout layout;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = unit * kUnitRows + layout.row(half);
      number[half] = head * arguments.num_rows() + row;
      position[half] = INT_MAX;
      pages[half] = 0;
      step[half] = 0;
      if (row >= arguments.num_rows()) continue;
      const RowTile tile = arguments.tiles[arguments.sample.tile(row)];
      const int32_t inside = arguments.rows.rows[number[half]];
      if (inside < 0) continue;
      position[half] = static_cast<int32_t>(tile.position) + inside;
      pages[half] = position[half] / static_cast<int32_t>(kPageTokens) + 1;
      step[half] = arguments.rows.steps[number[half]];
    }
  }
};

// Floats from 2^20 to 2^21 have steps of an eighth: adding the middle of this range rounds to these
// steps, and the bits count them.
static_assert(kMassStepsPerOctave == 8);
constexpr float kRounding = 0x1.8p20F;
constexpr float kLowest = 0x1p20F;
constexpr float kHighest = 0x1p21F;

// The masses of one of a thread's rows in a group of pages. Page 4 i + lane % 4 is element
// 4 (i / 2) + 2 half + i % 2 of the scores, because of centre_place().
class RowMasses {
 public:
  static constexpr int kPages = kGroupPages / 4;

  __device__ RowMasses(const PageScanArguments& arguments, const ThreadRows& rows, int half,
                       int32_t first_page)
      : arguments_(arguments), rows_(rows), half_(half), first_page_(first_page) {}

  // Called by the four threads of a row together.
  __device__ void store(float (&scores)[kScoresPerThread]) const {
    hide_unseen(scores);
    const Sum kept = take_kept(scores);
    // Masses are shifted so that the low byte of their bits is what is stored. The largest rounds
    // to kTop: kLargestMass is even, so halves round as they did in largest().
    constexpr float kTop = kRounding + kLargestMass / float{kMassStepsPerOctave};
    const float largest = this->largest(scores);
    const float shift = kTop - (largest - kRounding);
    float far = 0;
    uint32_t codes[kPages];
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const float mass = fmaxf(fmaf(scores[element(i)], arguments_.scale_log2, shift), kRounding);
      far += mass > kRounding ? ptx::exp2_approx(mass - kTop) : 0.0F;
      codes[i] = __float_as_uint(mass);
    }
    far = sum_of_row(far);
    const uint4 bytes = side_by_side(codes);
    if (rows_.pages[half_] <= first_page_) return;
    const int64_t first = rows_.number[half_] * arguments_.page_stride + first_page_;
    *reinterpret_cast<uint4*>(arguments_.masses + first + quarter() * kPages) = bytes;
    if (quarter() == 0) {
      const bool is_number = largest < kHighest && kept.largest < kHighest;
      arguments_.groups[first / kGroupPages] = {.exponent = is_number ? steps(largest) : kNoNumber,
                                                .far = far,
                                                .kept_exponent = steps(kept.largest),
                                                .kept = kept.sum};
    }
  }

 private:
  // Masses in units of 2^(largest - kRounding).
  struct Sum {
    float largest = kLowest;
    float sum = 0;
  };

  __device__ static int quarter() {
    return static_cast<int>(threadIdx.x) % 4;
  }
  __device__ int element(int i) const {
    return i / 2 * 4 + 2 * half_ + i % 2;
  }
  __device__ int32_t page(int i) const {
    return first_page_ + 4 * i + quarter();
  }
  __device__ static int32_t steps(float rounded) {
    return __float_as_int(rounded) - __float_as_int(kRounding);
  }

  __device__ void hide_unseen(float (&scores)[kScoresPerThread]) const {
    if (first_page_ + kGroupPages <= rows_.pages[half_]) return;
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      if (page(i) >= rows_.pages[half_]) scores[element(i)] = -INFINITY;
    }
  }

  // The masses of the kept pages, whose scores are then hidden.
  __device__ Sum take_kept(float (&scores)[kScoresPerThread]) const {
    const bool has_kept = first_page_ == 0 || first_page_ + kGroupPages > rows_.pages[half_] - 2;
    if (!__any_sync(~0U, has_kept)) return {};
    float kept[kScoresPerThread];
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      float& score = scores[element(i)];
      const bool stays = is_kept(page(i), rows_.pages[half_]);
      kept[element(i)] = stays ? score : -INFINITY;
      score = stays ? -INFINITY : score;
    }
    Sum result = {.largest = largest(kept)};
    const float shift = 2 * kRounding - result.largest;
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const float mass = fmaf(kept[element(i)], arguments_.scale_log2, shift);
      result.sum += ptx::exp2_approx(mass - kRounding);
    }
    result.sum = sum_of_row(result.sum);
    return result;
  }

  // The largest of the row's scores, rounded to a step. The four threads get the same.
  __device__ float largest(const float (&scores)[kScoresPerThread]) const {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPages; ++i) largest = ptx::larger_or_nan(largest, scores[element(i)]);
    largest = ptx::larger_or_nan(largest, __shfl_xor_sync(~0U, largest, 1));
    largest = ptx::larger_or_nan(largest, __shfl_xor_sync(~0U, largest, 2));
    return ptx::larger_or_nan(fmaf(largest, arguments_.scale_log2, kRounding), kLowest);
  }

  __device__ static float sum_of_row(float x) {
    x += __shfl_xor_sync(~0U, x, 1);
    return x + __shfl_xor_sync(~0U, x, 2);
  }

  // The thread's quarter of the row's 64 bytes, from codes of every fourth page.
  __device__ static uint4 side_by_side(const uint32_t (&codes)[kPages]) {
    uint32_t words[4];  // word w: codes 4 w to 4 w + 3 of this thread
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[w] = four_bytes(codes[4 * w], codes[4 * w + 1], codes[4 * w + 2], codes[4 * w + 3]);
    }
    // Moves thread t's word w to thread w's word t, one bit of their numbers at a time.
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
      const bool upper = (quarter() & bit) != 0;
#pragma unroll
      for (int low = 0; low < 4; ++low) {
        if ((low & bit) != 0) continue;
        uint32_t& a = words[low];
        uint32_t& b = words[low | bit];
        const uint32_t other = __shfl_xor_sync(~0U, upper ? a : b, bit);
        (upper ? a : b) = other;
      }
    }
    // Moves byte i of word t to byte t of word i.
    const uint32_t low01 = __byte_perm(words[0], words[1], 0x5140);
    const uint32_t low23 = __byte_perm(words[2], words[3], 0x5140);
    const uint32_t high01 = __byte_perm(words[0], words[1], 0x7362);
    const uint32_t high23 = __byte_perm(words[2], words[3], 0x7362);
    return {__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
            __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632)};
  }

  const PageScanArguments& arguments_;
  const ThreadRows& rows_;
  int half_;
  int32_t first_page_;
};

// One warpgroup and its unit of rows.
template <int kHeadDim>
class Scanner {
  using Shared = ScanShared<kHeadDim>;
  using Block = ScanBlock<Shared::kScanners>;

 public:
  __device__ Scanner(Shared& shared, const PageScanArguments& arguments, const Block& block,
                     int warpgroup)
      : shared_(shared), arguments_(arguments), block_(block), warpgroup_(warpgroup) {}

  __device__ void run() {
    if (warpgroup_ >= block_.num_units) return pass_all();
    const int32_t unit = block_.unit(arguments_, warpgroup_);
    const int32_t head = block_.head(warpgroup_);
    const ThreadRows rows(arguments_, unit, head);
    load_rows(unit, head);
    const int32_t num_pages = ptx::uniform(block_.pages_of(arguments_, warpgroup_));
    ptx::barrier_wait(&shared_.rows_full, 0);
    for (int32_t group = 0; group < block_.num_pages; group += kGroupPages) {
      const int32_t end = min(group + kGroupPages, block_.num_pages);
      for (int32_t page = group; page < end; page += kStepPages) {
        ptx::barrier_wait(&shared_.full[at_.stage], at_.parity);
        if (page < num_pages) {
          scan_step(rows, block_.first_page + page, (page - group) / kStepPages);
        } else {
          leave();
        }
      }
      ptx::barrier_wait(&shared_.full[at_.stage], at_.parity);
      if (group < num_pages) {
        finish_group(rows, block_.first_page + group);
      } else {
        leave();
      }
    }
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kGroupThreads; }
  __device__ static int quarter() { return static_cast<int>(threadIdx.x) % 4; }

  // For a warpgroup without a unit.
  __device__ void pass_all() {
    for (int32_t group = 0; group < block_.num_pages; group += kGroupPages) {
      const int32_t end = min(group + kGroupPages, block_.num_pages);
      for (int32_t page = group; page < end + kStepPages; page += kStepPages) {
        ptx::barrier_wait(&shared_.full[at_.stage], at_.parity);
        leave();
      }
    }
  }

  // Releases the stage once it has been read.
  __device__ void leave() {
    if (thread() % kWarpThreads == 0) ptx::barrier_arrive(&shared_.empty[at_.stage]);
    at_.advance();
  }

  // Rows beyond the last are zero.
  __device__ void load_rows(int32_t unit, int32_t head) {
    const ScoreLayout layout;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = unit * kUnitRows + layout.row(half);
      const auto* words =
          reinterpret_cast<const uint32_t*>(arguments_.rows.quantised +
                                            (head * arguments_.num_rows() + row) * kHeadDim) +
          quarter();
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        rows_[2 * i + half] = row < arguments_.num_rows() ? words[4 * i] : 0;
      }
    }
  }

  // Scans four pages: finds the largest products with the differences of their keys from the
  // centres.
  __device__ void scan_step(const ThreadRows& rows, int32_t first_page, int step) {
    const uint32_t keys = ptx::shared_address(shared_.stages[at_.stage]);
    const float page_step =
        arguments_.page_steps[block_.kv.plane * arguments_.num_places + first_page + quarter()];
    int32_t best[2][kStepPages];
#pragma unroll
    for (int product = 0; product < kStepPages / kProductPages; ++product) {
      multiply(keys + product * kProductKeys * Shared::kKeyBytes);
      if (product == kStepPages / kProductPages - 1) leave();
      hide_later_keys(rows,
                      (first_page + product * kProductPages) * static_cast<int32_t>(kPageTokens));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int page = 0; page < kProductPages; ++page) {
          best[half][product * kProductPages + page] = largest_product(half, page);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      shared_.best[warpgroup_][2 * step + half][thread()] =
          page_step * static_cast<float>(best_of_quarter(best[half]));
    }
  }

  __device__ void multiply(uint32_t keys) {
    ptx::fence_operand(products_);
    ptx::fence_operand(rows_);
    ptx::wgmma_fence();
    const uint32_t at = ptx::uniform(keys);
    const uint64_t b =
        kHeadDim == 64 ? ptx::narrow_matrix_descriptor(at) : ptx::matrix_descriptor(at, 16);
#pragma unroll
    for (int k = 0; k < kHeadDim / 32; ++k) {
      const uint64_t offset = (k / 4 * Shared::kKeyPanelBytes + k % 4 * 32) / 16;
      ptx::wgmma_int8_128(products_, rows_ + 4 * k, b + offset, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products_);
  }

  __device__ void hide_later_keys(const ThreadRows& rows, int32_t first_key) {
    if (first_key + kProductKeys - 1 <= min(rows.position[0], rows.position[1])) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t last = rows.position[half] - first_key - 2 * quarter();
#pragma unroll
      for (int j = 0; j < kProductKeys / 8; ++j) {
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          if (8 * j + right > last) products_[4 * j + 2 * half + right] = INT_MIN;
        }
      }
    }
  }

  // The largest of the thread's products for one of its rows and one page.
  __device__ int32_t largest_product(int half, int page) const {
    constexpr int kColumns = static_cast<int>(kPageTokens) / 8;
    int32_t largest = INT_MIN;
#pragma unroll
    for (int j = page * kColumns; j < (page + 1) * kColumns; ++j) {
      const int32_t* pair = products_ + 4 * j + 2 * half;
      largest = max(max(largest, pair[0]), pair[1]);
    }
    return largest;
  }

  // The largest over the four threads of a row, for page lane % 4.
  __device__ static int32_t best_of_quarter(const int32_t (&pages)[kStepPages]) {
    const bool odd = quarter() % 2 != 0;
    const bool upper = quarter() / 2 != 0;
    const auto swap = [](bool mine, int32_t low, int32_t high, int distance) {
      const int32_t other = __shfl_xor_sync(~0U, mine ? low : high, distance);
      return max(mine ? high : low, other);
    };
    const int32_t first = swap(odd, pages[0], pages[1], 1);
    const int32_t second = swap(odd, pages[2], pages[3], 1);
    return swap(upper, first, second, 2);
  }

  // Computes the products with the centres of 64 pages and, with the largest products of their
  // keys, the masses.
  __device__ void finish_group(const ThreadRows& rows, int32_t first_page) {
    float scores[kScoresPerThread];
    const uint64_t a =
        ptx::matrix_descriptor(ptx::uniform(ptx::shared_address(shared_.rows[warpgroup_])), 16);
    const uint64_t b =
        ptx::matrix_descriptor(ptx::uniform(ptx::shared_address(shared_.stages[at_.stage])), 16);
    ptx::fence_operand(scores);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const uint64_t offset = (k / 4 * kPanelBytes + k % 4 * 32) / 16;
      ptx::wgmma_shared_64<Float16>(scores, a + offset, b + offset, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores);
    leave();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < RowMasses::kPages; ++i) {
        float& score = scores[i / 2 * 4 + 2 * half + i % 2];
        score = fmaf(rows.step[half], shared_.best[warpgroup_][2 * i + half][thread()], score);
      }
      RowMasses(arguments_, rows, half, first_page).store(scores);
    }
  }

  Shared& shared_;
  const PageScanArguments& arguments_;
  const Block& block_;
  int warpgroup_;
  RingCursor<Shared::kStages> at_;
  uint32_t rows_[kHeadDim / 8];
  int32_t products_[kProductsPerThread];
};

template <int kHeadDim>
__global__ void __launch_bounds__(ScanGroups<kHeadDim>::kThreads, 1)
    page_scan_kernel(const __grid_constant__ PageScanArguments arguments,
                     const __grid_constant__ PageScanMaps maps) {
  using Shared = ScanShared<kHeadDim>;
  using Groups = ScanGroups<kHeadDim>;
  constexpr int kScanners = Groups::kScanners;
  auto& shared = aligned_shared<Shared>();
  const ScanBlock<kScanners> block(arguments);
  if (block.num_pages == 0) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::barrier_init(&shared.full[i], 1);
      ptx::barrier_init(&shared.empty[i], kScanners * kGroupThreads / kWarpThreads);
    }
    ptx::barrier_init(&shared.rows_full, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  if (warpgroup == kScanners) {
    ptx::warpgroup_reg_dealloc<Groups::kProducerRegisters>();
    if (threadIdx.x == kScanners * kGroupThreads) bring_pages(shared, arguments, block, maps);
  } else {
    ptx::warpgroup_reg_alloc<Groups::kScannerRegisters>();
    Scanner<kHeadDim>(shared, arguments, block, warpgroup).run();
  }
}

}  // namespace

void launch_page_scan(const PageScanArguments& arguments, const PageScanMaps& maps,
                      cudaStream_t stream) {
  const int64_t units = arguments.num_units() * arguments.max_heads;
  for_head_dim(arguments.head_dim, [&](auto head_dim) {
    using Groups = ScanGroups<head_dim()>;
    const dim3 grid(static_cast<unsigned>((units + Groups::kScanners - 1) / Groups::kScanners),
                    static_cast<unsigned>((arguments.page_stride + kRangePages - 1) / kRangePages),
                    static_cast<unsigned>(arguments.num_kv_heads));
    constexpr int kBytes = kAlignedSharedBytes<ScanShared<head_dim()>>;
    MR_CUDA_CHECK(cudaFuncSetAttribute(page_scan_kernel<head_dim()>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    page_scan_kernel<head_dim()><<<grid, Groups::kThreads, kBytes, stream>>>(arguments, maps);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
