// A block multiplies kScoreRows row representatives with the representatives of up to kRangePages
// pages, slot after slot of 64 pages at a time.
//
// Weights 2^x of one row span more than a float does, and the row's maximum is not known before all
// products are: so the pages of a group of 64 share an exponent, about the maximum of what this row
// has there, and whoever reads the row brings them together. The exponent depends only on the row
// and on the pages it may see, so that ranks that own other tiles agree bit by bit.
#include "kernels/cuda/estimation/representative_scores.h"

#include <cfloat>

#include "kernels/cuda/check.h"
#include "kernels/cuda/estimation/aligned_shared.cuh"
#include "kernels/cuda/estimation/head_dim.h"
#include "kernels/cuda/estimation/tile_products.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {
namespace {

static_assert(kScorePages == kTileKeys);
constexpr int kScoreThreads = kScoreRows / 64 * kGroupThreads;
constexpr int kRangePages = 512;
// Powers of two that a mass may exceed its group's exponent by: sums of a row stay finite.
constexpr float kHeadroom = 40;

// The rows and pages of this block, and the thread's two rows among them.
struct ScoreBlock {
  int64_t first_row;  // of the warpgroup
  int32_t first_page;
  int32_t num_groups;  // of 64 pages
  int32_t pages[2];    // that the thread's rows may see

  __device__ explicit ScoreBlock(const RepresentativeScoreArguments& arguments) {
    // Later rows see more pages: the longest first.
    const auto block = static_cast<int32_t>(gridDim.y - 1 - blockIdx.y);
    first_row = int64_t{block} * kScoreRows + threadIdx.x / kGroupThreads * 64;
    first_page = static_cast<int32_t>(blockIdx.x) * kRangePages;
    const int32_t num_pages = min(arguments.block_pages[block] - first_page, kRangePages);
    num_groups = (max(num_pages, 0) + kScorePages - 1) / kScorePages;
    const ScoreLayout layout;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_row + layout.row(half);
      pages[half] =
          row < arguments.num_rows ? arguments.tile_pages[row / arguments.rows_per_tile] : 0;
    }
  }

  // Of the thread's row in [num_heads, num_rows].
  __device__ int64_t row(const RepresentativeScoreArguments& arguments, int half) const {
    return int64_t{blockIdx.z} * arguments.num_rows + first_row + ScoreLayout().row(half);
  }
};

__device__ void store_scores(const ScoreBlock& block, const RepresentativeScoreArguments& arguments,
                             int32_t first_page, const float (&scores)[kScoresPerThread]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (block.pages[half] <= first_page) continue;
    float* out = arguments.scores + block.row(arguments, half) * arguments.page_stride +
                 first_page + ScoreLayout().key(0);
#pragma unroll
    for (int j = 0; j < kScorePages / 8; ++j) {
      *reinterpret_cast<float2*>(out + 8 * j) = {scores[4 * j + 2 * half],
                                                 scores[4 * j + 2 * half + 1]};
    }
  }
}

// Weights of one group of pages at a time, slot after slot.
class GroupMasses {
 public:
  __device__ GroupMasses(const RepresentativeScoreArguments& arguments, const ScoreBlock& block)
      : arguments_(arguments),
        block_(block),
        crowd_weight_(log_of_crowd(static_cast<int32_t>(kTileKeys))),
        first_page_(block.first_page) {}

  // Scores of the next slot.
  __device__ void add(float (&scores)[kScoresPerThread]) {
    if (first_page_ + kScorePages > min(block_.pages[0], block_.pages[1])) hide_unseen(scores);
    if (first_page_ + kScorePages >= arguments_.num_pages) weigh_last_page(scores);
    const float weight = slot_ == arguments_.page_outliers ? crowd_weight_ : 0.0F;
    if (slot_ == 0) {
      // Not -inf: a row that sees no page of the group must not meet inf - inf.
      exponent_[0] = exponent_[1] = -FLT_MAX;
#pragma unroll
      for (float& mass : masses_) mass = 0;
    }
    raise_exponents(scores, weight);
#pragma unroll
    for (int e = 0; e < kScoresPerThread; ++e) {
      masses_[e] +=
          ptx::exp2_approx(fmaf(scores[e], arguments_.scale_log2, weight - exponent_[e / 2 % 2]));
    }
    if (++slot_ <= arguments_.page_outliers) return;
    store();
    slot_ = 0;
    first_page_ += kScorePages;
  }

 private:
  // log2 of the keys that the crowd of a page of `num_keys` keys stands for.
  __device__ float log_of_crowd(int32_t num_keys) const {
    const int32_t crowd = num_keys - arguments_.page_outliers;
    return crowd > 0 ? log2f(static_cast<float>(crowd)) : -INFINITY;
  }

  __device__ void hide_unseen(float (&scores)[kScoresPerThread]) const {
    const ScoreLayout layout;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t seen = block_.pages[half] - first_page_ - layout.key(0);
#pragma unroll
      for (int j = 0; j < kScoresPerThread / 4; ++j) {
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          if (8 * j + right >= seen) scores[4 * j + 2 * half + right] = -INFINITY;
        }
      }
    }
  }

  // The last page may be short: fewer outliers, another crowd.
  __device__ void weigh_last_page(float (&scores)[kScoresPerThread]) const {
    const int32_t num_keys = arguments_.last_page_keys;
    const int32_t last = arguments_.num_pages - 1 - first_page_ - ScoreLayout().key(0);
    float correction = slot_ < num_keys ? 0.0F : -INFINITY;
    if (slot_ == arguments_.page_outliers) {
      const float weight = log_of_crowd(num_keys);
      if (crowd_weight_ == -INFINITY || weight == crowd_weight_) return;
      correction = weight - crowd_weight_;
    }
    correction /= arguments_.scale_log2;
#pragma unroll
    for (int e = 0; e < kScoresPerThread; ++e) {
      if (e / 4 * 8 + e % 2 == last) scores[e] += correction;
    }
  }

  // The first slot sets a group's exponents; later ones raise them where they would overflow.
  __device__ void raise_exponents(const float (&scores)[kScoresPerThread], float weight) {
    const float highest[2] = {exponent_of_maximum(scores, 0, weight),
                              exponent_of_maximum(scores, 1, weight)};
    if (slot_ == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) exponent_[half] = fmaxf(exponent_[half], highest[half]);
      return;
    }
    // A row by itself: what its neighbours in the warp hold must not change its bits.
    const bool rises[2] = {highest[0] > exponent_[0] + kHeadroom,
                           highest[1] > exponent_[1] + kHeadroom};
    if (!__any_sync(~0U, rises[0] || rises[1])) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float raised = rises[half] ? highest[half] : exponent_[half];
      const float shrink = ptx::exp2_approx(exponent_[half] - raised);
#pragma unroll
      for (int j = 0; j < kScoresPerThread / 4; ++j) {
        masses_[4 * j + 2 * half] *= shrink;
        masses_[4 * j + 2 * half + 1] *= shrink;
      }
      exponent_[half] = raised;
    }
  }

  __device__ float exponent_of_maximum(const float (&scores)[kScoresPerThread], int half,
                                       float weight) const {
    float maximum = scores[2 * half];
#pragma unroll
    for (int j = 0; j < kScoresPerThread / 4; ++j) {
      maximum = fmaxf(maximum, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
    }
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 2));
    return ceilf(fmaf(maximum, arguments_.scale_log2, weight));
  }

  __device__ void store() const {
    store_scores(block_, arguments_, first_page_, masses_);
    const ScoreLayout layout;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (layout.lane % 4 != 0 || block_.pages[half] <= first_page_) continue;
      const int64_t first = block_.row(arguments_, half) * arguments_.page_stride + first_page_;
      arguments_.exponents[first / kScorePages] = exponent_[half];
    }
  }

  const RepresentativeScoreArguments& arguments_;
  const ScoreBlock& block_;
  float crowd_weight_;
  int32_t first_page_;
  int32_t slot_ = 0;
  float masses_[kScoresPerThread];
  float exponent_[2];
};

// Slot after slot of one group of pages after the other.
class PageBoxes {
 public:
  __device__ PageBoxes(int32_t first_page, int32_t first_plane, int32_t num_slots)
      : page_(first_page), plane_(first_plane), slots_left_(num_slots), num_slots_(num_slots) {}

  __device__ TileBox operator()() {
    const TileBox box = {page_, plane_++};
    if (--slots_left_ == 0) {
      slots_left_ = num_slots_;
      plane_ -= num_slots_;
      page_ += kScorePages;
    }
    return box;
  }

 private:
  int32_t page_;
  int32_t plane_;
  int32_t slots_left_;
  int32_t num_slots_;
};

template <int kHeadDim, bool kMasses>
__global__ void __launch_bounds__(kScoreThreads, 2)
    score_kernel(const __grid_constant__ RepresentativeScoreArguments arguments,
                 const __grid_constant__ CUtensorMap page_map) {
  auto& ring = aligned_shared<TileRing<kHeadDim>>();
  const ScoreBlock block(arguments);
  if (block.num_groups == 0) return;
  if (threadIdx.x == 0) ring.initialise();
  __syncthreads();
  const int64_t first_row = int64_t{blockIdx.z} * arguments.num_rows + block.first_row;
  const int64_t rows_left = max(arguments.num_rows - block.first_row, int64_t{0});
  RowFragments<__half, kHeadDim> rows(arguments.rows + first_row * kHeadDim, kHeadDim,
                                      static_cast<int>(min(rows_left, int64_t{64})));
  const int num_slots = kMasses ? arguments.page_outliers + 1 : 1;
  const PageBoxes boxes(block.first_page, arguments.kv_heads[blockIdx.z] * num_slots, num_slots);
  if constexpr (kMasses) {
    GroupMasses masses(arguments, block);
    stream_products(ring, page_map, rows, block.num_groups * num_slots, boxes,
                    [&](float(&scores)[kScoresPerThread]) { masses.add(scores); });
  } else {
    int32_t first_page = block.first_page;
    stream_products(ring, page_map, rows, block.num_groups, boxes,
                    [&](const float(&scores)[kScoresPerThread]) {
                      store_scores(block, arguments, first_page, scores);
                      first_page += kScorePages;
                    });
  }
}

template <bool kMasses>
void launch(const RepresentativeScoreArguments& arguments, const CUtensorMap& page_map,
            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((arguments.page_stride + kRangePages - 1) / kRangePages),
                  static_cast<unsigned>((arguments.num_rows + kScoreRows - 1) / kScoreRows),
                  static_cast<unsigned>(arguments.num_heads));
  for_head_dim(arguments.head_dim, [&](auto head_dim) {
    constexpr int kBytes = kAlignedSharedBytes<TileRing<head_dim()>>;
    MR_CUDA_CHECK(cudaFuncSetAttribute(score_kernel<head_dim(), kMasses>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    score_kernel<head_dim(), kMasses><<<grid, kScoreThreads, kBytes, stream>>>(arguments, page_map);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace

void launch_pooled_scores(const RepresentativeScoreArguments& arguments,
                          const CUtensorMap& page_map, cudaStream_t stream) {
  launch<false>(arguments, page_map, stream);
}

void launch_page_masses(const RepresentativeScoreArguments& arguments, const CUtensorMap& page_map,
                        cudaStream_t stream) {
  launch<true>(arguments, page_map, stream);
}

}  // namespace millrace::kernels::cuda
