// SPDX-License-Identifier: Apache-2.0
// One warp per row. Masses are steps below the row's largest, of which 254 count, so a histogram of the scanned pages
// says how much mass they hold and, summed from the top, where the target is reached. A last pass takes the pages
// above that value, and the first of those at it. Groups of pages of which none is scanned are not read.
#include "kernels/cuda/sm90/estimation/adaptive/mass_choice.h"

#include <cmath>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/choice_shared.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxWarps = 16;
// Blocks per multiprocessor, which leaves 64 registers per thread.
constexpr int kBlocks = 2;
constexpr int kValues = 256;
constexpr int kValuesPerLane = kValues / kWarp;
static_assert(kValuesPerLane == kMassStepsPerOctave);  // one octave per lane
// A mass this many steps below the row's largest, or more, counts as none.
constexpr int32_t kLargestValue = kValues - 2;
constexpr int kLanePages = 16;  // masses that a lane reads at once
constexpr int kGroupLanes = kGroupPages / kLanePages;
constexpr int kGroupsAtOnce = kWarp / kGroupLanes;

// 2^(-step / kMassStepsPerOctave).
__constant__ const float kStepMass[kMassStepsPerOctave] = {
    1.0F,         0.917004043F, 0.840896415F, 0.771105413F,
    0.707106781F, 0.648419777F, 0.594603558F, 0.545253866F,
};

// How far kept pages may outweigh the others: more would not fit a float, nor change a choice.
constexpr float kMaxSteps = 100 * kMassStepsPerOctave;

// Memory of one warp; as many numbers of groups as a row has groups follow it.
struct RowMemory {
  // Value v is at v + 1, so that the eight values of an octave are 32 aligned bytes, the lowest
  // first.
  alignas(16) uint32_t histogram[kValues];

  __device__ uint32_t& pages_at(int32_t value) { return histogram[value + 1]; }
};

// Where a row reaches its target: all pages above `value`, and the first `count` of those at it.
struct Threshold {
  int32_t value;
  int32_t count;
  bool takes_all;  // of those
};

class RowChoice {
 public:
  __device__ RowChoice(ChosenPages& chosen, RowMemory& memory, uint16_t* active, int32_t num_pages)
      : chosen_(chosen),
        memory_(memory),
        active_(active),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        num_groups_((num_pages + kGroupPages - 1) / kGroupPages) {}

  // Adds the fewest pages that have the mass that the rule wants besides the kept ones.
  __device__ void cover(const MassSteps* masses, const uint64_t* scanned, const KeptMass& kept,
                        const AdaptiveRule& rule) {
    masses_ = masses;
    scanned_ = scanned;
    if (isnan(kept.sum)) return chosen_.add_all(lane_, kWarp);
    if (!find_groups()) return;
    find_largest();
    if (largest_ == kNotANumber) return chosen_.add_all(lane_, kWarp);
    count_values();
    const auto kept_steps = fminf(kept.steps - static_cast<float>(largest_), kMaxSteps);
    const RowSums sums = {.far = sum_of_far(), .kept = kept.sum * two_to(kept_steps)};
    const float target = fmaxf(fminf(rule.gamma * sums.far, sums.far_for(rule.enough)),
                               sums.far_for(rule.min_recall));
    if (target > 0) take(find_threshold(target));
  }

 private:
  // In units of the largest mass of a far page, like all masses below.
  struct RowSums {
    float far;
    float kept;

    // The part of `far` that is needed for this share of both.
    __device__ float far_for(float share) const { return share * far - (1 - share) * kept; }
  };

  __device__ static float two_to(float steps) {
    return ptx::exp2_approx(steps * (1.0F / kMassStepsPerOctave));
  }

  // Finds the groups of which pages were scanned, in order; false if there is none.
  __device__ bool find_groups() {
    num_active_ = 0;
#pragma unroll 1
    for (int32_t first = 0; first < num_groups_; first += kWarp) {
      const int32_t group = first + lane_;
      const bool is_active = group < num_groups_ && scanned_[group] != 0;
      const uint32_t ballot = __ballot_sync(~0U, is_active);
      if (is_active) {
        active_[num_active_ + __popc(ballot & ((1U << lane_) - 1))] = static_cast<uint16_t>(group);
      }
      num_active_ += __popc(ballot);
    }
    __syncwarp();
    return num_active_ > 0;
  }

  // Calls use(steps, pages, group) for kGroupsAtOnce groups at a time, with 16 masses of this lane, of which `pages`
  // says which were scanned. Only they may be used. A loop over the bits of `pages` would cost more: they are clustered.
  template <typename Use>
  __device__ void for_each_group(const Use& use) {
#pragma unroll 1
    for (int32_t first = 0; first < num_active_; first += kGroupsAtOnce) {
      const int32_t i = first + lane_ / kGroupLanes;
      const int quarter = lane_ % kGroupLanes;
      int32_t group = 0;
      uint32_t pages = 0;
      int32_t steps[kLanePages] = {};
      if (i < num_active_) {
        group = active_[i];
        pages = static_cast<uint32_t>(scanned_[group] >> quarter * kLanePages) & 0xFFFF;
        const auto* vectors =
            reinterpret_cast<const uint4*>(masses_ + group * kGroupPages + quarter * kLanePages);
        const uint4 low = vectors[0];
        const uint4 high = vectors[1];
        const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int w = 0; w < 8; ++w) {
          steps[2 * w] = static_cast<int16_t>(words[w] & 0xFFFF);
          steps[2 * w + 1] = static_cast<int16_t>(words[w] >> 16);
        }
      }
      use(steps, pages, group);
    }
  }

  __device__ void find_largest() {
    int32_t largest = -kLargestSteps;
    for_each_group([&](const int32_t(&steps)[kLanePages], uint32_t pages, int32_t) {
#pragma unroll
      for (int k = 0; k < kLanePages; ++k) {
        if ((pages >> k & 1) != 0) largest = max(largest, steps[k]);
      }
    });
    largest_ = __reduce_max_sync(~0U, largest);
  }

  __device__ int32_t value_of(int32_t steps) const {
    return steps - largest_ + kLargestValue;
  }

  __device__ void count_values() {
    auto* vectors = reinterpret_cast<uint4*>(memory_.histogram);
    vectors[lane_] = vectors[lane_ + kWarp] = {};
    __syncwarp();
    for_each_group([&](const int32_t(&steps)[kLanePages], uint32_t pages, int32_t) {
#pragma unroll
      for (int k = 0; k < kLanePages; ++k) {
        const int32_t value = value_of(steps[k]);
        if ((pages >> k & 1) != 0 && value > 0) atomicAdd(&memory_.pages_at(value), 1U);
      }
    });
    __syncwarp();
  }

  // The counts of an octave, one per lane from the top, the largest value first.
  __device__ void load_counts(uint32_t (&counts)[kValuesPerLane]) const {
    const auto* vectors = reinterpret_cast<const uint4*>(memory_.histogram);
    const uint4 upper = vectors[2 * (kWarp - 1 - lane_) + 1];
    const uint4 lower = vectors[2 * (kWarp - 1 - lane_)];
    counts[0] = upper.w, counts[1] = upper.z, counts[2] = upper.y, counts[3] = upper.x;
    counts[4] = lower.w, counts[5] = lower.z, counts[6] = lower.y, counts[7] = lower.x;
  }

  // The mass of the lane's octave.
  __device__ float mass_of(const uint32_t (&counts)[kValuesPerLane]) const {
    float mass = 0;
#pragma unroll
    for (int step = 0; step < kValuesPerLane; ++step) {
      mass += static_cast<float>(counts[step]) * kStepMass[step];
    }
    return mass * __int_as_float((127 - lane_) << 23);  // times 2^-lane
  }

  __device__ float sum_of_far() const {
    uint32_t counts[kValuesPerLane];
    load_counts(counts);
    float sum = mass_of(counts);
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      sum += __shfl_xor_sync(~0U, sum, distance);
    }
    return sum;
  }

  __device__ Threshold find_threshold(float target) const {
    const int32_t top = kLargestValue - lane_ * kValuesPerLane;
    uint32_t counts[kValuesPerLane];
    load_counts(counts);
    float with = mass_of(counts);
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const float other = __shfl_up_sync(~0U, with, distance);
      if (lane_ >= distance) with += other;
    }
    const float upper = __shfl_up_sync(~0U, with, 1);
    const float before = lane_ == 0 ? 0.0F : upper;
    const uint32_t reached = __ballot_sync(~0U, with >= target);
    // Rounding may keep the sum below the target; then all pages that count are taken.
    if (reached == 0) return {.value = 1, .count = 0, .takes_all = true};
    const int lane = __ffs(static_cast<int>(reached)) - 1;

    // In units of the octave; goes down step by step until one has what is left.
    float left = (target - before) * __int_as_float((127 + lane_) << 23);
    int at = 0;
    uint32_t count = counts[0];
#pragma unroll
    for (int step = 0; step + 1 < kValuesPerLane; ++step) {
      const float mass = static_cast<float>(counts[step]) * kStepMass[step];
      if (at != step || mass >= left) continue;
      left -= mass;
      ++at;
      count = counts[step + 1];
    }
    const float inverse = ptx::exp2_approx(static_cast<float>(at) / kMassStepsPerOctave);
    const auto needed = static_cast<int32_t>(fminf(ceilf(left * inverse), 1e9F));
    const auto takes_all = static_cast<int>(needed >= static_cast<int32_t>(count));
    return {.value = __shfl_sync(~0U, top - at, lane),
            .count = __shfl_sync(~0U, max(needed, 1), lane),
            .takes_all = __shfl_sync(~0U, takes_all, lane) != 0};
  }

  __device__ void take(const Threshold& threshold) {
    int32_t left = threshold.count;
    for_each_group([&](const int32_t(&steps)[kLanePages], uint32_t scanned, int32_t group) {
      uint32_t above = 0;
      uint32_t at = 0;
#pragma unroll
      for (int k = 0; k < kLanePages; ++k) {
        const int32_t value = value_of(steps[k]);
        above |= static_cast<uint32_t>(value > threshold.value) << k;
        at |= static_cast<uint32_t>(value == threshold.value) << k;
      }
      uint32_t pages = above & scanned;
      pages |= threshold.takes_all ? at & scanned : first_of(at & scanned, left);
      const uint32_t upper = __shfl_down_sync(~0U, pages, 1);
      if (lane_ % 2 != 0) return;
      const int32_t first_page = group * kGroupPages + lane_ % kGroupLanes * kLanePages;
      chosen_.add_word(first_page / 32, pages | upper << 16);
    });
  }

  // The first `left` of the warp's bits, lane by lane; reduces `left` by their number.
  __device__ uint32_t first_of(uint32_t bits, int32_t& left) const {
    if (left <= 0 || !__any_sync(~0U, bits != 0)) return 0;
    int32_t before = __popc(bits);
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int32_t other = __shfl_up_sync(~0U, before, distance);
      if (lane_ >= distance) before += other;
    }
    const int32_t total = __shfl_sync(~0U, before, kWarp - 1);
    for (int32_t excess = before - left; excess > 0 && bits != 0; --excess) {
      bits &= ~(0x80000000U >> __clz(static_cast<int>(bits)));
    }
    left = max(left - total, 0);
    return bits;
  }

  ChosenPages& chosen_;
  RowMemory& memory_;
  uint16_t* active_;
  int lane_;
  int32_t num_groups_;
  const MassSteps* masses_ = nullptr;  // by page, where scanned
  const uint64_t* scanned_ = nullptr;  // by group, a bit for each page
  int32_t largest_ = 0;
  int32_t num_active_ = 0;
};

// A block's shared memory: the pages of the tile, then the rows of its warps.
struct ChoiceLayout {
  int64_t words;
  int64_t groups;

  explicit __host__ __device__ ChoiceLayout(int64_t page_stride)
      : words(page_stride / 32), groups(page_stride / kGroupPages) {}

  __host__ __device__ int64_t first_row() const { return (words * 4 + 15) / 16 * 16; }
  __host__ __device__ int64_t row_bytes() const {
    return (static_cast<int64_t>(sizeof(RowMemory) + groups * sizeof(uint16_t)) + 15) / 16 * 16;
  }
  __host__ __device__ int64_t bytes(int64_t num_warps) const {
    return first_row() + num_warps * row_bytes();
  }
};

// blockIdx.x is the tile, blockIdx.y the head.
__global__ void __launch_bounds__(kMaxWarps* kWarp, kBlocks)
    mass_choice_kernel(const __grid_constant__ MassChoiceArguments arguments) {
  extern __shared__ __align__(16) std::byte choice_memory[];
  __shared__ int32_t count;
  const ChoiceTiles& tiles = arguments.tiles;
  const ChoiceLayout layout(tiles.page_stride);
  const int64_t tile = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int32_t num_pages = tiles.tile_pages[tile];
  ChosenPages chosen(reinterpret_cast<uint32_t*>(choice_memory), &count, num_pages);
  chosen.clear();
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  std::byte* memory = choice_memory + layout.first_row() + warp * layout.row_bytes();
  RowChoice row(chosen, *reinterpret_cast<RowMemory*>(memory),
                reinterpret_cast<uint16_t*>(memory + sizeof(RowMemory)), num_pages);
  const int32_t num_rows =
      arguments.sample.rows_in(static_cast<int32_t>(arguments.row_tiles[tile].num_rows));
  const AdaptiveRule rule = arguments.rules[head];
  const int64_t first_row = (head * tiles.num_tiles + tile) * tiles.rows_per_tile;
#pragma unroll 1
  for (int32_t r = warp; r < num_rows; r += num_warps) {
    row.cover(arguments.masses + (first_row + r) * tiles.page_stride,
              arguments.scanned + (first_row + r) * layout.groups, arguments.kept[first_row + r],
              rule);
  }
  if (threadIdx.x == 0) {
    chosen.add(0);
    for (int32_t page = max(num_pages - 2, 0); page < num_pages; ++page) chosen.add(page);
  }
  __syncthreads();
  chosen.store(tiles, head * tiles.num_tiles + tile);
}

}  // namespace

void launch_choose_by_mass(const MassChoiceArguments& arguments, cudaStream_t stream) {
  const ChoiceTiles& tiles = arguments.tiles;
  const dim3 grid(static_cast<unsigned>(tiles.num_tiles), static_cast<unsigned>(tiles.num_heads));
  const int rounds = (tiles.rows_per_tile + kMaxWarps - 1) / kMaxWarps;
  const int num_warps = (tiles.rows_per_tile + rounds - 1) / rounds;
  const auto bytes = static_cast<int>(ChoiceLayout(tiles.page_stride).bytes(num_warps));
  MR_CUDA_CHECK(
      cudaFuncSetAttribute(mass_choice_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  mass_choice_kernel<<<grid, num_warps * kWarp, static_cast<size_t>(bytes), stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
