// A block multiplies kScoreRows row representatives with the representatives of up to kRangePages
// pages, slot after slot of 64 pages at a time.
//
// Masses 2^x of one row span more than a float does, and the row's maximum is not known before all
// products are: so their logarithms are kept, in steps of an eighth of an octave, relative to the
// largest of each group of 64 pages. That depends only on the row and on the pages it may see, so
// that ranks that own other tiles agree bit by bit.
#include "kernels/cuda/estimation/representative_scores.h"

#include <cmath>

#include "kernels/cuda/check.h"
#include "kernels/cuda/estimation/aligned_shared.cuh"
#include "kernels/cuda/estimation/head_dim.h"
#include "kernels/cuda/estimation/representatives.h"
#include "kernels/cuda/estimation/tile_products.cuh"
#include "kernels/cuda/ptx/larger.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {
namespace {

static_assert(kScorePages == kTileKeys);
constexpr int kScoreThreads = kScoreRows / 64 * kGroupThreads;
constexpr int kRangePages = 512;
// Of a group, side by side: representative_place() has it so.
constexpr int kThreadPages = 16;

// Numbers from 2^20 to 2^21 have steps of an eighth: adding the middle rounds to these, and the
// bits count them.
static_assert(kMassStepsPerOctave == 8);
constexpr float kRounding = 0x1.8p20F;
constexpr float kLowest = 0x1p20F;
constexpr float kHighest = 0x1p21F;

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

// The scores of a thread for one of its rows, page after page: element 2 j + right is 4 j + 2 half
// + right of the product.
__device__ int element(int half, int i) {
  return i / 2 * 4 + 2 * half + i % 2;
}

__device__ void store_scores(const ScoreBlock& block, const RepresentativeScoreArguments& arguments,
                             int32_t first_page, const float (&scores)[kScoresPerThread]) {
  const int first = ScoreLayout().lane % 4 * kThreadPages;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (block.pages[half] <= first_page) continue;
    float* out =
        arguments.scores + block.row(arguments, half) * arguments.page_stride + first_page + first;
#pragma unroll
    for (int i = 0; i < kThreadPages; i += 4) {
      *reinterpret_cast<float4*>(out + i) = {scores[element(half, i)], scores[element(half, i + 1)],
                                             scores[element(half, i + 2)],
                                             scores[element(half, i + 3)]};
    }
  }
}

// The masses of one group of pages at a time, slot after slot: the largest of what a page's
// representatives stand for.
class GroupMasses {
 public:
  __device__ GroupMasses(const RepresentativeScoreArguments& arguments, const ScoreBlock& block)
      : arguments_(arguments),
        block_(block),
        crowd_weight_(weight_of_crowd(static_cast<int32_t>(kTileKeys))),
        first_page_(block.first_page) {}

  // Scores of the next slot: the crowd's, then those of the outliers.
  __device__ void add(float (&scores)[kScoresPerThread]) {
    if (slot_ == 0) {
#pragma unroll
      for (int e = 0; e < kScoresPerThread; ++e) largest_[e] = scores[e] + crowd_weight_;
      if (holds_last_page()) weigh_last_crowd(scores);
    } else {
      if (holds_last_page() && slot_ > arguments_.last_page_keys) hide_last_page(scores);
#pragma unroll
      for (int e = 0; e < kScoresPerThread; ++e) {
        largest_[e] = ptx::larger_or_nan(largest_[e], scores[e]);
      }
    }
    if (++slot_ <= arguments_.page_outliers) return;
    if (first_page_ + kScorePages > min(block_.pages[0], block_.pages[1])) hide_unseen();
    finish(0);
    finish(1);
    slot_ = 0;
    first_page_ += kScorePages;
  }

 private:
  // Added to the score of the crowd of a page of `num_keys` keys: log2 of the keys it stands for.
  __device__ float weight_of_crowd(int32_t num_keys) const {
    const int32_t crowd = num_keys - arguments_.page_outliers;
    return crowd > 0 ? log2f(static_cast<float>(crowd)) / arguments_.scale_log2 : -INFINITY;
  }

  __device__ static int first_of_thread() {
    return ScoreLayout().lane % 4 * kThreadPages;
  }

  // The last page may be short: fewer outliers, another crowd.
  __device__ bool holds_last_page() const {
    return first_page_ + kScorePages >= arguments_.num_pages;
  }
  template <typename Use>
  __device__ void for_last_page(const Use& use) const {
    const int32_t last = arguments_.num_pages - 1 - first_page_ - first_of_thread();
#pragma unroll
    for (int i = 0; i < kThreadPages; ++i) {
      if (i != last) continue;
      use(element(0, i));
      use(element(1, i));
    }
  }
  __device__ void weigh_last_crowd(const float (&scores)[kScoresPerThread]) {
    const float weight = weight_of_crowd(arguments_.last_page_keys);
    for_last_page([&](int e) { largest_[e] = scores[e] + weight; });
  }
  __device__ void hide_last_page(float (&scores)[kScoresPerThread]) const {
    for_last_page([&](int e) { scores[e] = -INFINITY; });
  }

  __device__ void hide_unseen() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t seen = block_.pages[half] - first_page_ - first_of_thread();
#pragma unroll
      for (int i = 0; i < kThreadPages; ++i) {
        if (i >= seen) largest_[element(half, i)] = -INFINITY;
      }
    }
  }

  // Of what one of the thread's rows has in the group, rounded to a step. The four threads of a row
  // agree on it.
  __device__ float largest_mass(int half) const {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kThreadPages; ++i) {
      largest = ptx::larger_or_nan(largest, largest_[element(half, i)]);
    }
    largest = ptx::larger_or_nan(largest, __shfl_xor_sync(~0U, largest, 1));
    largest = ptx::larger_or_nan(largest, __shfl_xor_sync(~0U, largest, 2));
    return ptx::larger_or_nan(fmaf(largest, arguments_.scale_log2, kRounding), kLowest);
  }

  // Stores what one of the thread's rows has in the group. Masses are shifted so that the low byte
  // of their bits is what is stored. The largest rounds to kTop, as an even number of steps did to
  // largest_mass() where it lies between two.
  __device__ void finish(int half) const {
    constexpr float kTop = kRounding + kLargestMass / float{kMassStepsPerOctave};
    const float largest = largest_mass(half);
    const float shift = kTop - (largest - kRounding);
    float sum = 0;
    uint32_t codes[kThreadPages];
#pragma unroll
    for (int i = 0; i < kThreadPages; ++i) {
      const float score = largest_[element(half, i)];
      const float mass = fmaxf(fmaf(score, arguments_.scale_log2, shift), kRounding);
      sum += ptx::exp2_approx(mass - kTop);
      codes[i] = __float_as_uint(mass);
    }
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    if (block_.pages[half] <= first_page_) return;
    const int64_t first = block_.row(arguments_, half) * arguments_.page_stride + first_page_;
    *reinterpret_cast<uint4*>(arguments_.masses + first + first_of_thread()) = {
        low_bytes(codes), low_bytes(codes + 4), low_bytes(codes + 8), low_bytes(codes + 12)};
    if (ScoreLayout().lane % 4 == 0) {
      const bool is_number = largest < kHighest;
      const int32_t steps = __float_as_int(largest) - __float_as_int(kRounding);
      arguments_.groups[first / kScorePages] = {is_number ? steps : kNoNumber, sum};
    }
  }

  __device__ static uint32_t low_bytes(const uint32_t* words) {
    const uint32_t lower = __byte_perm(words[0], words[1], 0x0040);
    const uint32_t upper = __byte_perm(words[2], words[3], 0x0040);
    return __byte_perm(lower, upper, 0x5410);
  }

  const RepresentativeScoreArguments& arguments_;
  const ScoreBlock& block_;
  float crowd_weight_;
  int32_t first_page_;
  int32_t slot_ = 0;
  float largest_[kScoresPerThread];
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
  RowFragments<Float16, kHeadDim> rows(arguments.rows + first_row * kHeadDim, kHeadDim,
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
