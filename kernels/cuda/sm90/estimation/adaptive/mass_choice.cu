// SPDX-License-Identifier: Apache-2.0
// One warp per row. The sums of the groups say how much mass the row needs besides the pages that
// its tile keeps. Most rows of most heads need nothing, and their masses are not read.
//
// For the others: masses have 255 values, so a histogram of the pages that may count, summed from
// the top, says where the target is reached. A second pass takes the pages above that value, and
// the first of those at it. Groups of pages whose largest mass is negligible are not read.
#include "kernels/cuda/sm90/estimation/adaptive/mass_choice.h"

#include <cmath>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/choice_shared.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxWarps = 16;
// Blocks per multiprocessor, which leaves 42 registers per thread.
constexpr int kBlocks = 3;
constexpr int kValues = 256;
constexpr int kValuesPerLane = kValues / kWarp;
static_assert(kValuesPerLane == kMassStepsPerOctave);  // one octave per lane
static_assert(kLargestMass == kValues - 2);
constexpr int kLaneBytes = 16;  // masses that a lane reads at once
constexpr int kGroupLanes = kGroupPages / kLaneBytes;
constexpr int kGroupsAtOnce = kWarp / kGroupLanes;

// 2^(-step / kMassStepsPerOctave).
__constant__ const float kStepMass[kMassStepsPerOctave] = {
    1.0F,         0.917004043F, 0.840896415F, 0.771105413F,
    0.707106781F, 0.648419777F, 0.594603558F, 0.545253866F,
};

// How far kept pages may outweigh the others: more would not fit a float, nor change a choice.
constexpr int32_t kMaxSteps = 100 * kMassStepsPerOctave;

// A group that may count.
struct ActiveGroup {
  uint16_t number;
  uint16_t shift;  // by which its masses are smaller in units of the row's largest
};

// Memory of one warp; as many active groups as a row has groups follow it.
struct RowMemory {
  // Value v is at v + 1, so that the eight values of an octave are 32 aligned bytes, the lowest
  // first.
  alignas(16) uint32_t histogram[kValues];

  __device__ uint32_t& pages_at(int32_t value) { return histogram[value + 1]; }
};

// Bit i: byte i of the words is at least `min_value`, which is at most 255.
__device__ uint32_t bits_from(const uint32_t (&words)[4], uint32_t min_value) {
  const uint32_t carry = (256 - min_value) * 0x00010001U;  // into the bit above
  // For each word, its lower two bytes next to each other and its upper two 16 bits above them.
  uint32_t pairs = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t even = (words[w] & 0x00FF00FFU) + carry;
    const uint32_t odd = (words[w] >> 8 & 0x00FF00FFU) + carry;
    pairs |=
        (even >> (8 - 2 * w) & 0x00010001U << 2 * w) | (odd >> (7 - 2 * w) & 0x00020002U << 2 * w);
  }
  pairs = (pairs | pairs << 4) & 0x0F0F0F0FU;
  pairs = (pairs | pairs << 2) & 0x33333333U;
  return (pairs | pairs >> 14) & 0xFFFFU;
}

// Where a row reaches its target: all pages above `value`, and the first `count` of those at it.
struct Threshold {
  int32_t value;
  int32_t count;
  bool takes_all;  // of those
};

class RowChoice {
 public:
  __device__ RowChoice(ChosenPages& chosen, RowMemory& memory, ActiveGroup* active,
                       int32_t num_pages)
      : chosen_(chosen),
        memory_(memory),
        active_(active),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        num_pages_(num_pages),
        num_groups_((num_pages + kGroupPages - 1) / kGroupPages) {}

  // Adds the fewest pages that have the mass that the rule wants besides the kept ones.
  __device__ void cover(const uint8_t* masses, const MassGroup* groups, const AdaptiveRule& rule) {
    masses_ = reinterpret_cast<const uint4*>(masses) + lane_ % kGroupLanes;
    groups_ = groups;
    if (!find_exponents()) return chosen_.add_all(lane_, kWarp);
    const RowSums sums = add_groups();
    const float target = fmaxf(fminf(rule.gamma * sums.far, sums.far_for(rule.enough)),
                               sums.far_for(rule.min_recall));
    if (target <= 0) return;
    find_groups(find_min_value(sums.far - target));
    count_values();
    take(find_threshold(target));
  }

 private:
  // In units of the largest mass of a page that is not kept, like all masses below.
  struct RowSums {
    float far;
    float kept;

    // The part of `far` that is needed for this share of both.
    __device__ float far_for(float share) const { return share * far - (1 - share) * kept; }
  };

  // Finds the exponents of the row's largest masses; false if a mass is NaN.
  __device__ bool find_exponents() {
    int32_t largest = groups_[0].exponent;
    int32_t kept = groups_[0].kept_exponent;
#pragma unroll 1
    for (int32_t g = lane_; g < num_groups_; g += kWarp) {
      largest = max(largest, groups_[g].exponent);
      kept = max(kept, groups_[g].kept_exponent);
    }
    exponent_ = __reduce_max_sync(~0U, largest);
    kept_exponent_ = __reduce_max_sync(~0U, kept);
    return exponent_ != kNoNumber;
  }

  __device__ RowSums add_groups() const {
    RowSums sums = {};
#pragma unroll 1
    for (int32_t g = lane_; g < num_groups_; g += kWarp) {
      const MassGroup group = groups_[g];
      sums.far += group.far * two_to(group.exponent - exponent_);
      sums.kept += group.kept * two_to(group.kept_exponent - kept_exponent_);
    }
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      sums.far += __shfl_xor_sync(~0U, sums.far, distance);
      sums.kept += __shfl_xor_sync(~0U, sums.kept, distance);
    }
    sums.kept *= two_to(min(kept_exponent_ - exponent_, kMaxSteps));
    return sums;
  }

  __device__ static float two_to(int32_t steps) {
    return ptx::exp2_approx(static_cast<float>(steps) * (1.0F / kMassStepsPerOctave));
  }

  // The smallest mass that may count: even if all pages had less than this, they could all be left
  // out.
  __device__ int32_t find_min_value(float left_out) const {
    const float negligible = __fdividef(fmaxf(left_out, 0.0F), static_cast<float>(num_pages_));
    const float steps = floorf(kMassStepsPerOctave * __log2f(negligible));
    return max(static_cast<int32_t>(kLargestMass + fmaxf(steps, -kLargestMass)), 1);
  }

  // Finds the groups that have masses of at least `min_value`, in order.
  __device__ void find_groups(int32_t min_value) {
    min_value_ = min_value;
    num_active_ = 0;
#pragma unroll 1
    for (int32_t first = 0; first < num_groups_; first += kWarp) {
      const int32_t group = first + lane_;
      const int32_t shift =
          group < num_groups_ ? exponent_ - groups_[group].exponent : kLargestMass;
      const bool is_active = kLargestMass - shift >= min_value;
      const uint32_t ballot = __ballot_sync(~0U, is_active);
      if (is_active) {
        active_[num_active_ + __popc(ballot & ((1U << lane_) - 1))] = {
            .number = static_cast<uint16_t>(group), .shift = static_cast<uint16_t>(shift)};
      }
      num_active_ += __popc(ballot);
    }
    __syncwarp();
  }

  // Calls use(masses, group) for kGroupsAtOnce groups at a time, with 16 masses of this lane.
  template <typename Use>
  __device__ void for_each_mass(const Use& use) {
#pragma unroll 1
    for (int32_t first = 0; first < num_active_; first += kGroupsAtOnce) {
      const int32_t i = first + lane_ / kGroupLanes;
      ActiveGroup group = {};
      uint4 masses = {};
      if (i < num_active_) {
        group = active_[i];
        masses = masses_[group.number * kGroupLanes];
      }
      const uint32_t words[4] = {masses.x, masses.y, masses.z, masses.w};
      use(words, group);
    }
  }

  __device__ int32_t first_page(int32_t group) const {
    return group * kGroupPages + lane_ % kGroupLanes * kLaneBytes;
  }

  // Masses that do not count are counted at the value below min_value_, which is cleared
  // afterwards: a branch for each mass would cost more.
  __device__ void count_values() {
    auto* vectors = reinterpret_cast<uint4*>(memory_.histogram);
    vectors[lane_] = vectors[lane_ + kWarp] = {};
    __syncwarp();
    for_each_mass([&](const uint32_t(&words)[4], ActiveGroup group) {
      const int32_t shift = group.shift;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
          const auto mass = static_cast<int32_t>(words[w] >> 8 * byte & 0xFF);
          atomicAdd(&memory_.pages_at(max(mass - shift, min_value_ - 1)), 1U);
        }
      }
    });
    __syncwarp();
    if (lane_ == 0) memory_.pages_at(min_value_ - 1) = 0;
    __syncwarp();
  }

  // One octave per lane, from the top.
  __device__ Threshold find_threshold(float target) {
    const float octave = __int_as_float((127 - lane_) << 23);  // 2^-lane
    const int32_t top = kLargestMass - lane_ * kValuesPerLane;
    const auto* vectors = reinterpret_cast<const uint4*>(memory_.histogram);
    const uint4 upper_half = vectors[2 * (kWarp - 1 - lane_) + 1];
    const uint4 lower_half = vectors[2 * (kWarp - 1 - lane_)];
    const uint32_t counts[kValuesPerLane] = {upper_half.w, upper_half.z, upper_half.y,
                                             upper_half.x, lower_half.w, lower_half.z,
                                             lower_half.y, lower_half.x};
    float own = 0;
#pragma unroll
    for (int step = 0; step < kValuesPerLane; ++step) {
      own += static_cast<float>(counts[step]) * kStepMass[step];
    }
    float with = own * octave;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const float other = __shfl_up_sync(~0U, with, distance);
      if (lane_ >= distance) with += other;
    }
    const float upper = __shfl_up_sync(~0U, with, 1);
    const float before = lane_ == 0 ? 0.0F : upper;
    const uint32_t reached = __ballot_sync(~0U, with >= target);
    // Rounding may keep the sum below the target; then all pages that count are taken.
    if (reached == 0) return {.value = min_value_, .count = num_pages_, .takes_all = true};
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
    for_each_mass([&](const uint32_t(&words)[4], ActiveGroup group) {
      const int32_t value = threshold.value + group.shift;
      uint32_t pages = pages_from(words, threshold.takes_all ? value : value + 1);
      if (!threshold.takes_all && left > 0) {
        pages |= first_of(pages_from(words, value) & ~pages, left);
      }
      const uint32_t upper = __shfl_down_sync(~0U, pages, 1);
      if (lane_ % 2 == 0) chosen_.add_word(first_page(group.number) / 32, pages | upper << 16);
    });
  }

  // Bit i: mass i is at least `min_value`. No mass exceeds kLargestMass.
  __device__ static uint32_t pages_from(const uint32_t (&words)[4], int32_t min_value) {
    return bits_from(words, static_cast<uint32_t>(min(min_value, kLargestMass + 1)));
  }

  // The first `left` of the warp's bits, lane by lane; reduces `left` by their number.
  __device__ uint32_t first_of(uint32_t bits, int32_t& left) const {
    if (!__any_sync(~0U, bits != 0)) return 0;
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
  ActiveGroup* active_;
  int lane_;
  int32_t num_pages_;
  int32_t num_groups_;
  const uint4* masses_ = nullptr;  // of this lane, in each group
  const MassGroup* groups_ = nullptr;
  int32_t exponent_ = 0;
  int32_t kept_exponent_ = 0;
  int32_t min_value_ = 0;
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
    return (static_cast<int64_t>(sizeof(RowMemory) + groups * sizeof(ActiveGroup)) + 15) / 16 * 16;
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
                reinterpret_cast<ActiveGroup*>(memory + sizeof(RowMemory)), num_pages);
  const int32_t num_rows =
      arguments.sample.rows_in(static_cast<int32_t>(arguments.row_tiles[tile].num_rows));
  const AdaptiveRule rule = arguments.rules[head];
  const int64_t first_row = (head * tiles.num_tiles + tile) * tiles.rows_per_tile;
  const uint8_t* masses = arguments.masses + first_row * tiles.page_stride;
  const MassGroup* groups = arguments.groups + first_row * layout.groups;
  const auto row_masses = static_cast<int32_t>(tiles.page_stride);
  const auto row_groups = static_cast<int32_t>(layout.groups);
#pragma unroll 1
  for (int32_t r = warp; r < num_rows; r += num_warps) {
    row.cover(masses + r * row_masses, groups + r * row_groups, rule);
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
  const int num_warps = tiles.rows_per_tile < kMaxWarps ? tiles.rows_per_tile : kMaxWarps;
  const auto bytes = static_cast<int>(ChoiceLayout(tiles.page_stride).bytes(num_warps));
  MR_CUDA_CHECK(
      cudaFuncSetAttribute(mass_choice_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  mass_choice_kernel<<<grid, num_warps * kWarp, static_cast<size_t>(bytes), stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
