// SPDX-License-Identifier: Apache-2.0
// A block loads the moments of 64 pages or spans at a time for four warpgroups, or for two if rows are 256 wide.
// Each warpgroup multiplies a unit of rows with the centres in int8 and their squares with the spreads in float16. It
// goes over the spans and the pages behind the last whole one to estimate each row's far mass, then over all pages
// to compare them with the row's threshold. The tensor cores work for one warpgroup while the others do the rest.
#include "kernels/cuda/sm90/estimation/adaptive/page_filter.h"

#include <cmath>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/aligned_shared.cuh"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/estimation/tile_products.cuh"
#include "kernels/cuda/sm90/ptx/larger.cuh"
#include "kernels/cuda/sm90/ptx/ring_cursor.cuh"

namespace millrace::kernels::cuda {
namespace {

// One warpgroup loads, the others filter. Threads of five warpgroups start with 96 registers, those of three with 168;
// the last two numbers redistribute the same total.
template <int kHeadDim>
struct FilterGroups {
  static constexpr int kFilters = kHeadDim == 256 ? 2 : 4;  // as many as have room for their rows
  static constexpr int kThreads = (kFilters + 1) * kGroupThreads;
  static constexpr int kProducerRegisters = kFilters == 4 ? 32 : 56;
  static constexpr int kFilterRegisters = kFilters == 4 ? 112 : 224;
};

static_assert(kGroupPages == kTileKeys && kUnitRows == kTileKeys);
constexpr int kPages = kGroupPages / 4;  // of a group, of which a thread has scores for a row
constexpr auto kPerStep = 1.0F / kMassStepsPerOctave;

template <int kHeadDim>
struct alignas(1024) FilterShared {
  static constexpr int kFilters = FilterGroups<kHeadDim>::kFilters;
  static constexpr int kStages = kHeadDim == 256 ? 2 : 4;
  // Centres are in consecutive panels, which have this many bytes of each.
  static constexpr int kCentreBytes = kHeadDim < 128 ? kHeadDim : 128;
  static constexpr uint32_t kCentrePanelBytes = kGroupPages * kCentreBytes;
  static constexpr uint32_t kStageBytes =
      kGroupPages * (kHeadDim * 3 + static_cast<uint32_t>(sizeof(VectorSteps)));
  static constexpr uint32_t kUnitBytes = kUnitRows * kHeadDim;

  std::byte spreads[kStages][kGroupPages * kHeadDim * 2];  // panels of 64 columns, 128-byte swizzle
  std::byte squares[kFilters][kUnitBytes * 2];             // the same
  std::byte centres[kStages][kGroupPages * kHeadDim];  // panels of kCentreBytes columns, swizzled
  std::byte rows[kFilters][kUnitBytes];                // the same
  VectorSteps steps[kStages][kGroupPages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t rows_full;
};

// What a block filters, and the groups of spans or pages that it goes over.
template <int kFilters>
struct FilterBlock {
  HeadsOfKv kv;
  int32_t first_unit;  // among the units of all heads of the kv head
  int32_t num_units;
  int32_t fewest_pages = INT32_MAX;  // that one of its rows may see
  int32_t most_pages = 0;

  __device__ explicit FilterBlock(const ScanBatch& batch)
      : kv(batch.kv_heads[blockIdx.z]),
        first_unit(static_cast<int32_t>(blockIdx.x) * kFilters),
        num_units(max(min(batch.num_units(kv) - first_unit, kFilters), 0)) {
    for (int i = 0; i < num_units; ++i) {
      const UnitPages pages = batch.units[batch.unit(kv, first_unit + i)];
      fewest_pages = min(fewest_pages, pages.fewest);
      most_pages = max(most_pages, pages.most);
    }
  }

  __device__ static int32_t spans_of(int32_t causal_pages) {
    return static_cast<int32_t>(whole_spans(max(far_end(causal_pages), 1)));
  }
  __device__ int32_t num_span_groups() const {
    return (spans_of(most_pages) + kGroupPages - 1) / kGroupPages;
  }
  // The groups with pages behind the last whole span of a row.
  __device__ int32_t first_tail_group() const {
    return (1 + spans_of(fewest_pages) * static_cast<int32_t>(kSpanPages)) / kGroupPages;
  }
  __device__ int32_t end_tail_group() const {
    return (max(far_end(most_pages), 0) + kGroupPages - 1) / kGroupPages;
  }
  __device__ int32_t num_groups() const { return (most_pages + kGroupPages - 1) / kGroupPages; }
};

// One thread.
template <int kHeadDim>
__device__ void bring_moments(FilterShared<kHeadDim>& shared, const ScanBatch& batch,
                              const KeyPages& keys,
                              const FilterBlock<FilterGroups<kHeadDim>::kFilters>& block,
                              const PageFilterMaps& maps) {
  using Shared = FilterShared<kHeadDim>;
  constexpr int kPanels = kHeadDim / kPanelColumns;
  ptx::barrier_arrive_expecting(&shared.rows_full,
                                static_cast<uint32_t>(block.num_units) * Shared::kUnitBytes * 3);
  for (int i = 0; i < block.num_units; ++i) {
    const int32_t row = batch.unit(block.kv, block.first_unit + i) * kUnitRows;
    const int32_t head = batch.head(block.kv, block.first_unit + i);
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::copy_box(ptx::shared_address(shared.squares[i]) + panel * kPanelBytes, maps.squares,
                    panel * kPanelColumns, row, head, &shared.rows_full);
    }
    for (int panel = 0; panel < kHeadDim / Shared::kCentreBytes; ++panel) {
      ptx::copy_box(ptx::shared_address(shared.rows[i]) + panel * Shared::kCentrePanelBytes,
                    maps.rows, panel * Shared::kCentreBytes, row, head, &shared.rows_full);
    }
  }
  RingCursor<Shared::kStages> at;
  const auto bring = [&](const KeyMoments& moments, const MomentMaps& moment_maps, int32_t group) {
    ptx::barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
    uint64_t* full = &shared.full[at.stage];
    ptx::barrier_arrive_expecting(full, Shared::kStageBytes);
    const int32_t first = group * kGroupPages;
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::copy_box(ptx::shared_address(shared.spreads[at.stage]) + panel * kPanelBytes,
                    moment_maps.spreads, panel * kPanelColumns, first, block.kv.plane, full);
    }
    for (int panel = 0; panel < kHeadDim / Shared::kCentreBytes; ++panel) {
      ptx::copy_box(
          ptx::shared_address(shared.centres[at.stage]) + panel * Shared::kCentrePanelBytes,
          moment_maps.centres, panel * Shared::kCentreBytes, first, block.kv.plane, full);
    }
    ptx::copy_bytes(ptx::shared_address(shared.steps[at.stage]),
                    moments.steps + block.kv.plane * moments.num_places() + first,
                    sizeof shared.steps[0], full);
    at.advance();
  };
  for (int32_t g = 0; g < block.num_span_groups(); ++g) bring(keys.spans, maps.spans, g);
  for (int32_t g = block.first_tail_group(); g < block.end_tail_group(); ++g) {
    bring(keys.pages, maps.pages, g);
  }
  for (int32_t g = 0; g < block.num_groups(); ++g) bring(keys.pages, maps.pages, g);
}

// A sum of exponentials, in units of 2^largest.
struct LogSum {
  float largest = -INFINITY;
  float sum = 0;

  __device__ void scale_to(float new_largest) {
    if (largest != new_largest) sum *= ptx::exp2_approx(largest - new_largest);
    largest = new_largest;
  }
  __device__ void add(const LogSum& other) {
    LogSum scaled = other;
    const float both = ptx::larger_or_nan(largest, other.largest);
    if (both == -INFINITY) return;
    scale_to(both);
    scaled.scale_to(both);
    sum += scaled.sum;
  }
};

// One warpgroup and its unit of rows.
template <int kHeadDim>
class Filter {
  using Shared = FilterShared<kHeadDim>;
  using Block = FilterBlock<Shared::kFilters>;

 public:
  __device__ Filter(Shared& shared, const ScanBatch& batch, const Block& block, int warpgroup)
      : shared_(shared), batch_(batch), block_(block), warpgroup_(warpgroup) {}

  __device__ void run(const KeptMass* kept, const ScannedPages& scanned) {
    if (warpgroup_ >= block_.num_units) return pass_all();
    unit_ = batch_.unit(block_.kv, block_.first_unit + warpgroup_);
    head_ = batch_.head(block_.kv, block_.first_unit + warpgroup_);
    load_rows();
    ptx::barrier_wait(&shared_.rows_full, 0);
    LogSum far[2][kFilterEstimates];
    for (int32_t g = 0; g < block_.num_span_groups(); ++g) {
      add_group(
          g * kGroupPages, 0, [&](int half) { return Block::spans_of(pages_[half]); },
          log2f(static_cast<float>(kSpanPages)), far);
    }
    for (int32_t g = block_.first_tail_group(); g < block_.end_tail_group(); ++g) {
      add_group(
          g * kGroupPages, 1, [&](int half) { return far_end(pages_[half]); }, 0, far);
    }
    float thresholds[2][kFilterEstimates];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kFilterEstimates; ++n) {
        thresholds[half][n] = threshold(far[half][n], kept, half) / filter_deviations(n);
      }
    }
    for (int32_t g = 0; g < block_.num_groups(); ++g) compare_group(g, thresholds, scanned);
  }

 private:
  __device__ static int thread() {
    return static_cast<int>(threadIdx.x) % kGroupThreads;
  }
  __device__ static int quarter() {
    return static_cast<int>(threadIdx.x) % 4;
  }
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % kWarpThreads;
  }

  __device__ void pass_all() {
    const int32_t groups = block_.num_span_groups() +
                           max(block_.end_tail_group() - block_.first_tail_group(), 0) +
                           block_.num_groups();
    for (int32_t g = 0; g < groups; ++g) {
      ptx::barrier_wait(&shared_.full[at_.stage], at_.parity);
      leave();
    }
  }

  __device__ void leave() {
    if (lane() == 0) ptx::barrier_arrive(&shared_.empty[at_.stage]);
    at_.advance();
  }

  // Rows beyond the last are zero and see nothing.
  __device__ void load_rows() {
    const ScoreLayout layout;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = unit_ * kUnitRows + layout.row(half);
      const bool is_row = row < batch_.num_rows();
      number_[half] = head_ * batch_.num_rows() + row;
      pages_[half] = 0;
      scale_[half] = 0;
      if (!is_row || batch_.rows.rows[number_[half]] < 0) continue;
      const RowTile tile = batch_.tiles[batch_.sample.tile(row)];
      pages_[half] = static_cast<int32_t>(tile.position / kPageTokens) + 1;
      scale_[half] = batch_.rows.steps[number_[half]] * batch_.scale_log2;
    }
  }

  // The products of the unit's rows with the centres and of their squares with the spreads of 64 pages or spans:
  // element(i, half) is number 4 i + lane % 4. leave() follows once the steps have been read.
  __device__ __forceinline__ void multiply(int32_t (&centres)[kScoresPerThread],
                                           float (&spreads)[kScoresPerThread]) {
    ptx::barrier_wait(&shared_.full[at_.stage], at_.parity);
    const auto int8_matrix = [](const std::byte* matrix) {
      const uint32_t at = ptx::uniform(ptx::shared_address(matrix));
      return kHeadDim == 64 ? ptx::narrow_matrix_descriptor(at) : ptx::matrix_descriptor(at, 16);
    };
    const uint64_t row_matrix = int8_matrix(shared_.rows[warpgroup_]);
    const uint64_t centre_matrix = int8_matrix(shared_.centres[at_.stage]);
    const uint64_t square_matrix =
        ptx::matrix_descriptor(ptx::uniform(ptx::shared_address(shared_.squares[warpgroup_])), 16);
    const uint64_t spread_matrix =
        ptx::matrix_descriptor(ptx::uniform(ptx::shared_address(shared_.spreads[at_.stage])), 16);
    ptx::fence_operand(centres);
    ptx::fence_operand(spreads);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kHeadDim / 32; ++k) {
      const uint64_t offset = (k / 4 * Shared::kCentrePanelBytes + k % 4 * 32) / 16;
      ptx::wgmma_int8_shared_64(centres, row_matrix + offset, centre_matrix + offset, k > 0);
    }
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const uint64_t offset = (k / 4 * kPanelBytes + k % 4 * 32) / 16;
      ptx::wgmma_shared_64<Float16>(spreads, square_matrix + offset, spread_matrix + offset, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_operand(centres);
    ptx::fence_operand(spreads);
  }
  // The steps of page or span 4 i + lane % 4 of the stage.
  __device__ VectorSteps steps(int i) const {
    return shared_.steps[at_.stage][4 * i + quarter()];
  }

  __device__ static float sqrt_approx(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ static constexpr int element(int i, int half) {
    return i / 2 * 4 + 2 * half + i % 2;
  }

  // Adds what lies in [begin, end(half)) and, of pages, behind the row's last whole span.
  template <typename End>
  __device__ void add_group(int32_t first, int32_t begin, const End& end, float log2_pages,
                            LogSum (&far)[2][kFilterEstimates]) {
    int32_t centres[kScoresPerThread];
    float spreads[kScoresPerThread];
    multiply(centres, spreads);
    float means[kScoresPerThread];
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const VectorSteps step = steps(i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = element(i, half);
        means[e] = step.centre * static_cast<float>(centres[e]);
        spreads[e] = step.keys * sqrt_approx(spreads[e]);
      }
    }
    leave();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t from =
          begin == 0 ? 0 : 1 + Block::spans_of(pages_[half]) * static_cast<int32_t>(kSpanPages);
      const int32_t to = end(half);
#pragma unroll
      for (int n = 0; n < kFilterEstimates; ++n) {
        const auto estimate = [&](int i) {
          const int32_t number = first + 4 * i + quarter();
          const int e = element(i, half);
          const float key = fmaf(filter_deviations(n), spreads[e], means[e]);
          return number >= from && number < to ? fmaf(scale_[half], key, log2_pages) : -INFINITY;
        };
        LogSum group;
#pragma unroll
        for (int i = 0; i < kPages; ++i) {
          group.largest = ptx::larger_or_nan(group.largest, estimate(i));
        }
        // Estimates are computed again rather than kept: there are no registers for them.
        ptx::fence_operand(means);
        if (group.largest == -INFINITY) continue;
#pragma unroll
        for (int i = 0; i < kPages; ++i) {
          group.sum += ptx::exp2_approx(estimate(i) - group.largest);
        }
        far[half][n].add(group);
      }
    }
  }

  // What C_P centre + n t_P sqrt(spread) is at least for a page that estimate n wants, given the far mass by that
  // estimate. Called by the four threads of a row together.
  __device__ float threshold(LogSum far, const KeptMass* kept, int half) const {
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
      far.add({.largest = __shfl_xor_sync(~0U, far.largest, distance),
               .sum = __shfl_xor_sync(~0U, far.sum, distance)});
    }
    if (pages_[half] == 0 || far.largest == -INFINITY) return INFINITY;
    const KeptMass own = kept[number_[half]];
    LogSum near = {.largest = own.steps * kPerStep, .sum = own.sum};
    const float both = ptx::larger_or_nan(far.largest, near.largest);
    far.scale_to(both);
    near.scale_to(both);
    const float left = filtered_mass(batch_.rules[head_], far.sum, near.sum);
    const float least = both + log2f(left / static_cast<float>(pages_[half]));
    // A row of zeros has the same estimate for every page.
    if (scale_[half] == 0) return least > 0 ? INFINITY : -INFINITY;
    return least / scale_[half];
  }

  // Writes which pages of the group are scanned: those that one of the estimates wants, so NaN passes. `thresholds`: of
  // C_P centre / n + t_P sqrt(spread).
  __device__ void compare_group(int32_t group, const float (&thresholds)[2][kFilterEstimates],
                                const ScannedPages& scanned) {
    int32_t centres[kScoresPerThread];
    float spreads[kScoresPerThread];
    multiply(centres, spreads);
    uint32_t scanned_pages[2][2] = {};  // of the thread's rows: page 4 i of the group at bit 4 i
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const VectorSteps step = steps(i);
      const float square = step.keys * step.keys;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = element(i, half);
        const auto centre = static_cast<float>(centres[e]);
        float surplus = -INFINITY;
#pragma unroll
        for (int n = 0; n < kFilterEstimates; ++n) {
          const float of_estimate =
              fmaf(centre, step.centre / filter_deviations(n), -thresholds[half][n]);
          surplus = n == 0 ? of_estimate : ptx::larger_or_nan(surplus, of_estimate);
        }
        // Below if surplus < -sqrt(variance), compared by squares with signs.
        if (!(surplus * fabsf(surplus) < -square * spreads[e])) {
          scanned_pages[half][i / 8] |= 1U << i % 8 * 4;
        }
      }
    }
    leave();
    const int32_t first = group * kGroupPages;
    uint32_t mine = 0;  // of what is written by unit: quarter q has half q / 2, word q % 2
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        uint32_t& word = scanned_pages[half][w];
        word <<= quarter();
        word |= __shfl_xor_sync(~0U, word, 1);
        word |= __shfl_xor_sync(~0U, word, 2);
        word &= bits_before(far_end(pages_[half]) - first - 32 * w);
        if (first == 0 && w == 0) word &= ~1U;  // the first page is kept
        if (quarter() == 2 * half + w) mine = word;
      }
    }
    const ScoreLayout layout;
    if (quarter() < 2) {
      const int half = quarter();
      if (unit_ * kUnitRows + layout.row(half) < batch_.num_rows()) {
        const int64_t number = half == 0 ? number_[0] : number_[1];
        *reinterpret_cast<uint2*>(scanned.of_rows + number * (batch_.page_stride / kGroupPages) +
                                  group) =
            half == 0 ? make_uint2(scanned_pages[0][0], scanned_pages[0][1])
                      : make_uint2(scanned_pages[1][0], scanned_pages[1][1]);
      }
    }
    const uint32_t rows = transposed(mine);
    auto* units = reinterpret_cast<uint8_t*>(
        scanned.of_units + (head_ * batch_.num_units() + unit_) * batch_.page_stride + first +
        quarter() % 2 * 32 + lane() / 4);
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      units[byte * 8 * sizeof(uint64_t) + 2 * layout.warp + quarter() / 2] =
          static_cast<uint8_t>(rows >> 8 * byte);
    }
  }

  // The lowest `count` bits; none or all if that is out of range.
  __device__ static uint32_t bits_before(int32_t count) {
    return count >= 32 ? ~0U : count <= 0 ? 0U : (1U << count) - 1;
  }

  // Of the eight lanes that share lane % 4: bit r of byte b of lane group c is what bit c of byte b was in lane group
  // r (groups are lane / 4).
  __device__ static uint32_t transposed(uint32_t x) {
    constexpr uint32_t kLow[3] = {0x55555555U, 0x33333333U, 0x0F0F0F0FU};
#pragma unroll
    for (int bit = 0; bit < 3; ++bit) {
      const int distance = 1 << bit;
      const uint32_t other = __shfl_xor_sync(~0U, x, 4 * distance);
      x = (lane() / 4 & distance) == 0 ? (x & kLow[bit]) | (other & kLow[bit]) << distance
                                       : (x & ~kLow[bit]) | (other >> distance & kLow[bit]);
    }
    return x;
  }

  Shared& shared_;
  const ScanBatch& batch_;
  const Block& block_;
  int warpgroup_;
  RingCursor<Shared::kStages> at_;
  int32_t unit_ = 0;
  int32_t head_ = 0;
  int64_t number_[2];  // of the thread's rows, in [num_heads, num_rows]
  int32_t pages_[2];   // that they may see; 0 for an absent row
  float scale_[2];
};

template <int kHeadDim>
__global__ void __launch_bounds__(FilterGroups<kHeadDim>::kThreads, 1)
    page_filter_kernel(const __grid_constant__ ScanBatch batch,
                       const __grid_constant__ KeyPages keys, const KeptMass* kept,
                       const __grid_constant__ PageFilterMaps maps,
                       const __grid_constant__ ScannedPages scanned) {
  using Shared = FilterShared<kHeadDim>;
  using Groups = FilterGroups<kHeadDim>;
  constexpr int kFilters = Groups::kFilters;
  auto& shared = aligned_shared<Shared>();
  const FilterBlock<kFilters> block(batch);
  if (block.num_units == 0) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::barrier_init(&shared.full[i], 1);
      ptx::barrier_init(&shared.empty[i], kFilters * kGroupThreads / kWarpThreads);
    }
    ptx::barrier_init(&shared.rows_full, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  if (warpgroup == kFilters) {
    ptx::warpgroup_reg_dealloc<Groups::kProducerRegisters>();
    if (threadIdx.x == kFilters * kGroupThreads) bring_moments(shared, batch, keys, block, maps);
  } else {
    ptx::warpgroup_reg_alloc<Groups::kFilterRegisters>();
    Filter<kHeadDim>(shared, batch, block, warpgroup).run(kept, scanned);
  }
}

}  // namespace

void launch_page_filter(const ScanBatch& batch, const KeyPages& keys, const KeptMass* kept,
                        const PageFilterMaps& maps, const ScannedPages& scanned,
                        cudaStream_t stream) {
  const int64_t units = batch.num_units() * batch.max_heads;
  for_head_dim(batch.head_dim, [&](auto head_dim) {
    using Groups = FilterGroups<head_dim()>;
    const dim3 grid(static_cast<unsigned>((units + Groups::kFilters - 1) / Groups::kFilters), 1,
                    static_cast<unsigned>(batch.num_kv_heads));
    constexpr int kBytes = kAlignedSharedBytes<FilterShared<head_dim()>>;
    MR_CUDA_CHECK(cudaFuncSetAttribute(page_filter_kernel<head_dim()>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    page_filter_kernel<head_dim()>
        <<<grid, Groups::kThreads, kBytes, stream>>>(batch, keys, kept, maps, scanned);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
