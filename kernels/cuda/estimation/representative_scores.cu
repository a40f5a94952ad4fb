// A block multiplies kScoreRows row representatives with the representatives of up to kRangePages
// pages, slot after slot of 64 pages at a time.
//
// Weights 2^x of one row span more than a float does, and the row's maximum is not known before all
// products are: so the pages of a group of 64 share an exponent, the rounded-up maximum of what
// this row has there, and whoever reads the row brings them together. The exponent depends only on
// the row and on the pages it may see, so that ranks that own other tiles agree bit by bit.
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

// The rows and pages of this block, and the thread's two rows among them.
struct ScoreBlock {
  int32_t first_page;
  int32_t num_groups;  // of 64 pages
  int64_t row[2];
  int32_t pages[2];  // that the row may see
  ScoreLayout layout;

  __device__ explicit ScoreBlock(const RepresentativeScoreArguments& arguments) {
    // Later rows see more pages: the longest first.
    const int32_t block = static_cast<int32_t>(gridDim.y - 1 - blockIdx.y);
    first_page = static_cast<int32_t>(blockIdx.x) * kRangePages;
    const int32_t num_pages = min(arguments.block_pages[block] - first_page, kRangePages);
    num_groups = (max(num_pages, 0) + kScorePages - 1) / kScorePages;
    first_row = int64_t{block} * kScoreRows + threadIdx.x / kGroupThreads * 64;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row[half] = first_row + layout.row(half);
      pages[half] = row[half] < arguments.num_rows
                        ? arguments.tile_pages[row[half] / arguments.rows_per_tile]
                        : 0;
    }
  }

  int64_t first_row;  // of the warpgroup
};

template <typename Use>
__device__ void store_rows(const ScoreBlock& block, const RepresentativeScoreArguments& arguments,
                           int group, const Use& value) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = int64_t{blockIdx.z} * arguments.num_rows + block.row[half];
    const int32_t first = block.first_page + group * kScorePages;
    if (block.pages[half] <= first) continue;
    float* out = arguments.scores + row * arguments.page_stride + first + block.layout.key(0);
#pragma unroll
    for (int j = 0; j < kScorePages / 8; ++j) {
      *reinterpret_cast<float2*>(out + 8 * j) = {value(4 * j + 2 * half),
                                                 value(4 * j + 2 * half + 1)};
    }
  }
}

// Weights of one group of pages, slot after slot.
class GroupMasses {
 public:
  __device__ GroupMasses(const RepresentativeScoreArguments& arguments, const ScoreBlock& block)
      : arguments_(arguments), block_(block) {}

  __device__ void start() {
#pragma unroll
    for (float& mass : masses_) mass = 0;
    // Not -inf: a row that sees no page of the group must not meet inf - inf.
    exponent_[0] = exponent_[1] = -FLT_MAX;
  }

  __device__ void add(int slot, int group, float (&scores)[kScoresPerThread]) {
    weigh(slot, group, scores);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      raise_exponent(scores, half);
#pragma unroll
      for (int j = 0; j < kScoresPerThread / 4; ++j) {
#pragma unroll
        for (int e = 4 * j + 2 * half; e < 4 * j + 2 * half + 2; ++e) {
          masses_[e] += ptx::exp2_approx(scores[e] - exponent_[half]);
        }
      }
    }
  }

  __device__ void store(int group) const {
    store_rows(block_, arguments_, group, [&](int e) { return masses_[e]; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t first = block_.first_page + group * kScorePages;
      if (block_.layout.lane % 4 != 0 || block_.pages[half] <= first) continue;
      const int64_t row = int64_t{blockIdx.z} * arguments_.num_rows + block_.row[half];
      arguments_.exponents[(row * arguments_.page_stride + first) / kScorePages] = exponent_[half];
    }
  }

 private:
  // log2 of the keys that a slot of a page of `num_keys` keys stands for.
  __device__ float log_weight(int slot, int num_keys) const {
    if (slot < arguments_.page_outliers) return slot < num_keys ? 0.0F : -INFINITY;
    const int crowd = num_keys - arguments_.page_outliers;
    return crowd > 0 ? log2f(static_cast<float>(crowd)) : -INFINITY;
  }

  __device__ void weigh(int slot, int group, float (&scores)[kScoresPerThread]) const {
    const float weight = log_weight(slot, static_cast<int>(kTileKeys));
#pragma unroll
    for (float& score : scores) score = score * arguments_.scale_log2 + weight;
    const int32_t first = block_.first_page + group * kScorePages;
    if (first + kScorePages <= min(block_.pages[0], block_.pages[1]) &&
        first + kScorePages < arguments_.num_pages) {
      return;
    }
    const float correction = log_weight(slot, arguments_.last_page_keys) - weight;
#pragma unroll
    for (int e = 0; e < kScoresPerThread; ++e) {
      const int32_t page = first + block_.layout.key(e / 4) + e % 2;
      if (page >= block_.pages[e / 2 % 2]) {
        scores[e] = -INFINITY;
      } else if (page == arguments_.num_pages - 1 && correction != 0) {
        // Not the sum of both where there is no such slot: -inf less -inf.
        scores[e] = weight == -INFINITY ? -INFINITY : scores[e] + correction;
      }
    }
  }

  __device__ void raise_exponent(const float (&scores)[kScoresPerThread], int half) {
    float maximum = scores[2 * half];
#pragma unroll
    for (int j = 0; j < kScoresPerThread / 4; ++j) {
      maximum = fmaxf(maximum, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
    }
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 2));
    const float raised = fmaxf(exponent_[half], ceilf(maximum));
    const float shrink = ptx::exp2_approx(exponent_[half] - raised);
#pragma unroll
    for (int j = 0; j < kScoresPerThread / 4; ++j) {
      masses_[4 * j + 2 * half] *= shrink;
      masses_[4 * j + 2 * half + 1] *= shrink;
    }
    exponent_[half] = raised;
  }

  const RepresentativeScoreArguments& arguments_;
  const ScoreBlock& block_;
  float masses_[kScoresPerThread];
  float exponent_[2];
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
  const int64_t rows_left = arguments.num_rows - block.first_row;
  RowFragments<__half, kHeadDim> rows(
      arguments.rows + first_row * kHeadDim, kHeadDim,
      static_cast<int>(min(max(rows_left, int64_t{0}), int64_t{64})));
  const int num_slots = kMasses ? arguments.page_outliers + 1 : 1;
  const int32_t first_plane = arguments.kv_heads[blockIdx.z] * num_slots;
  const auto box_of = [&](int i) {
    return TileBox{block.first_page + i / num_slots * kScorePages, first_plane + i % num_slots};
  };
  if constexpr (kMasses) {
    GroupMasses masses(arguments, block);
    int slot = 0;
    int group = 0;
    stream_products(ring, page_map, rows, block.num_groups * num_slots, box_of,
                    [&](int, float(&scores)[kScoresPerThread]) {
                      if (slot == 0) masses.start();
                      masses.add(slot, group, scores);
                      if (++slot < num_slots) return;
                      masses.store(group);
                      slot = 0;
                      ++group;
                    });
  } else {
    stream_products(ring, page_map, rows, block.num_groups, box_of,
                    [&](int group, const float(&scores)[kScoresPerThread]) {
                      store_rows(block, arguments, group, [&](int e) { return scores[e]; });
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
