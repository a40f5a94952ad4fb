// Choosing pages without a sort: a team of warps keeps one row of scores in registers and halves
// the interval of float bits in which the threshold lies, counting and adding what lies above it,
// until a warp can rank what is left.
#include "kernels/cuda/estimation/page_choice.h"

#include "kernels/cuda/check.h"
#include "kernels/cuda/estimation/block_select.cuh"
#include "kernels/cuda/estimation/representative_scores.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kValues = 64;  // of a thread
// Left in the interval when the ranking takes over: one a lane.
constexpr int kRankAtMost = kWarp;
// A row of one warp's reach leaves the block room for several, one per representative.
constexpr int kMostTeams = 8;

// What lies at or above a threshold.
struct Above {
  float sum;
  int32_t count;
};

// Keys in [low, high). 64 bits: high may be one more than any key.
struct Interval {
  uint64_t low;
  uint64_t high;
  int32_t count;
};

template <int kWarps>
struct ChoiceShared {
  static constexpr int kTeams = kWarps == 1 ? kMostTeams : 1;
  static constexpr int kPages = kWarps * kWarp * kValues;
  static constexpr int kWords = kPages / 32;

  uint32_t chosen[kWords];
  uint32_t equal[kTeams]
                [kWords];  // pages at the threshold when there are more than a ranking takes
  float factor[kTeams][kPages / kScorePages];
  float sums[kTeams][kWarps];
  int32_t counts[kTeams][kWarps];
  int32_t num_left[kTeams];
  uint32_t left_key[kTeams][kRankAtMost];
  int32_t left_page[kTeams][kRankAtMost];
};

// One row at a time. Keys rise with the value; 0 is a page out of the choice.
template <int kWarps>
class RowChoice {
  using Shared = ChoiceShared<kWarps>;
  static constexpr int kTeamThreads = kWarps * kWarp;
  static constexpr int kStep = 8;  // values between two looks at the row's end

 public:
  __device__ explicit RowChoice(Shared& shared)
      : shared_(shared),
        team_(kWarps == 1 ? static_cast<int>(threadIdx.x) / kWarp : 0),
        thread_(static_cast<int>(threadIdx.x) % kTeamThreads) {}

  // Adds the fewest pages whose masses reach gamma of the row's.
  __device__ void cover(const float* masses, const float* exponents, int32_t num_pages,
                        float gamma) {
    num_pages_ = num_pages;
    if (!align_exponents(exponents)) return take_all();
    const float* mine = masses + thread_;
    const float* factor = shared_.factor[team_] + thread_ / kScorePages;
    const int32_t reach = num_pages - thread_;
    for_each_value([&](int v, int32_t) {
      const int first = v * kTeamThreads;
      keys_[v] = first < reach ? __float_as_uint(mine[first] * factor[first / kScorePages]) : 0;
    });
    const Above all = above(1);
    // A NaN fails the comparison; its key is above all others, so it is in every sum.
    if (!(all.sum < INFINITY)) return take_all();
    const double target = static_cast<double>(gamma) * static_cast<double>(all.sum);
    const auto reaches = [&](Above upper) { return static_cast<double>(upper.sum) >= target; };
    // Pages below this share of what may be left out could all be left out.
    const float negligible = (1.0F - gamma) * all.sum / static_cast<float>(num_pages);
    // A page's mass is the sum of at most kMostOutliers + 1 terms that are at most 1.
    narrow({.low = 1, .high = __float_as_uint(128.0F), .count = all.count},
           __float_as_uint(negligible), reaches);
    take_above();
    take_rest([&](int32_t, double before) { return before < target; });
  }

  // Adds the `wanted` pages of highest score after the first page and the last.
  __device__ void best(const float* scores, int32_t num_pages, int32_t wanted) {
    num_pages_ = num_pages;
    const int32_t available = num_pages - 2;
    if (wanted >= available) return take_all();
    if (wanted <= 0) return;
    const float* mine = scores + thread_;
    const int32_t reach = num_pages - 1 - thread_;
    for_each_value([&](int v, int32_t page) {
      const int first = v * kTeamThreads;
      const bool in_choice = page > 0 && first < reach;
      keys_[v] = in_choice ? max(~descending_bits(mine[first]), 1U) : 0U;
    });
    const auto reaches = [&](Above upper) { return upper.count >= wanted; };
    const Interval all = whole_interval(available);
    narrow(all, all.low + (all.high - all.low) / 2, reaches);
    take_above();
    take_rest([&](int32_t rank, double) { return rank < wanted; });
  }

 private:
  __device__ static void synchronise() {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // use(v, page) for this thread's values, up to the first step past the row; the rest is zeroed.
  template <typename Use>
  __device__ void for_each_value(const Use& use) {
#pragma unroll
    for (int first = 0; first < kValues; first += kStep) {
      if (first * kTeamThreads < num_pages_) {
#pragma unroll
        for (int v = first; v < first + kStep; ++v) use(v, v * kTeamThreads + thread_);
      }
    }
  }

  __device__ Above reduce(Above value) {
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      value.sum += __shfl_xor_sync(~0U, value.sum, distance);
    }
    value.count = __reduce_add_sync(~0U, value.count);
    if constexpr (kWarps == 1) return value;
    if (thread_ % kWarp == 0) {
      shared_.sums[team_][thread_ / kWarp] = value.sum;
      shared_.counts[team_][thread_ / kWarp] = value.count;
    }
    synchronise();
    value = {0, 0};
    for (int warp = 0; warp < kWarps; ++warp) {
      value.sum += shared_.sums[team_][warp];
      value.count += shared_.counts[team_][warp];
    }
    synchronise();
    return value;
  }

  __device__ float maximum_of_team(float value) {
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      value = fmaxf(value, __shfl_xor_sync(~0U, value, distance));
    }
    if constexpr (kWarps == 1) return value;
    if (thread_ % kWarp == 0) shared_.sums[team_][thread_ / kWarp] = value;
    synchronise();
    for (int warp = 0; warp < kWarps; ++warp) value = fmaxf(value, shared_.sums[team_][warp]);
    synchronise();
    return value;
  }

  // Factors that bring the groups of pages to the exponent of the largest. False if that is no
  // number.
  __device__ bool align_exponents(const float* exponents) {
    const int32_t num_groups = (num_pages_ + kScorePages - 1) / kScorePages;
    float largest = -INFINITY;
    for (int32_t i = thread_; i < num_groups; i += kTeamThreads) {
      largest = fmaxf(largest, exponents[i]);
    }
    largest = maximum_of_team(largest);
    if (!(largest < INFINITY)) return false;
    for (int32_t i = thread_; i < num_groups; i += kTeamThreads) {
      const float difference = exponents[i] - largest;
      // 2^difference; what would be subnormal is nothing beside the largest page.
      shared_.factor[team_][i] =
          difference < -126.0F
              ? 0.0F
              : __uint_as_float(static_cast<uint32_t>(127 + static_cast<int>(difference)) << 23);
    }
    synchronise();
    return true;
  }

  __device__ Above above(uint32_t threshold) {
    Above mine = {0, 0};
    for_each_value([&](int v, int32_t) {
      if (keys_[v] >= threshold) {
        mine.sum += __uint_as_float(keys_[v]);
        ++mine.count;
      }
    });
    return reduce(mine);
  }

  // From the smallest key to the largest.
  __device__ Interval whole_interval(int32_t count) {
    uint32_t smallest = ~0U;
    uint32_t largest = 0;
    for_each_value([&](int v, int32_t) {
      if (keys_[v] != 0) smallest = min(smallest, keys_[v]);
      largest = max(largest, keys_[v]);
    });
    smallest = __reduce_min_sync(~0U, smallest);
    largest = __reduce_max_sync(~0U, largest);
    if constexpr (kWarps > 1) {
      if (thread_ % kWarp == 0) {
        shared_.counts[team_][thread_ / kWarp] = static_cast<int32_t>(smallest);
        shared_.sums[team_][thread_ / kWarp] = __uint_as_float(largest);
      }
      synchronise();
      for (int warp = 0; warp < kWarps; ++warp) {
        smallest = min(smallest, static_cast<uint32_t>(shared_.counts[team_][warp]));
        largest = max(largest, __float_as_uint(shared_.sums[team_][warp]));
      }
      synchronise();
    }
    return {.low = smallest, .high = uint64_t{largest} + 1, .count = count};
  }

  // Narrows `left_` until few keys or a single one are in it: what lies at or above its low end
  // reaches the target, what lies at or above its high end does not.
  template <typename Reaches>
  __device__ void narrow(Interval all, uint64_t pivot, const Reaches& reaches) {
    left_ = all;
    above_ = {0, 0};
    while (left_.count > kRankAtMost && left_.high - left_.low > 1) {
      if (pivot <= left_.low || pivot >= left_.high) {
        pivot = left_.low + (left_.high - left_.low) / 2;
      }
      const Above upper = above(static_cast<uint32_t>(pivot));
      if (reaches(upper)) {
        left_.low = pivot;
        left_.count = upper.count - above_.count;
      } else {
        left_.high = pivot;
        left_.count -= upper.count - above_.count;
        above_ = upper;
      }
      pivot = 0;
    }
  }

  __device__ void add_words(uint32_t (&words)[kValues / kWarp], uint32_t* bits) const {
    const int lane = thread_ % kWarp;
#pragma unroll
    for (int i = 0; i < kValues / kWarp; ++i) {
      const int word = (i * kWarp + lane) * kWarps + thread_ / kWarp;
      if (words[i] != 0) atomicOr(&bits[word], words[i]);
    }
  }

  // Sets the bits of the pages for which is_in(v).
  template <typename IsIn>
  __device__ void add_pages(const IsIn& is_in, uint32_t* bits) {
    uint32_t words[kValues / kWarp] = {};
    for_each_value([&](int v, int32_t) {
      const uint32_t ballot = __ballot_sync(~0U, is_in(v));
      if (thread_ % kWarp == v % kWarp) words[v / kWarp] = ballot;
    });
    add_words(words, bits);
  }

  __device__ void take_all() {
    const int32_t num_words = (num_pages_ + 31) / 32;
    for (int32_t i = thread_; i < num_words; i += kTeamThreads) {
      const int32_t bits = min(num_pages_ - 32 * i, 32);
      atomicOr(&shared_.chosen[i], bits == 32 ? ~0U : (1U << bits) - 1);
    }
  }

  __device__ void take_above() {
    add_pages([&](int v) { return keys_[v] >= left_.high; }, shared_.chosen);
  }

  // Takes what fits of the keys left, in order: fits(number of keys before it, their sum).
  template <typename Fits>
  __device__ void take_rest(const Fits& fits) {
    if (left_.count <= kRankAtMost) {
      rank_rest(fits);
    } else {
      take_equal(fits);
    }
  }

  template <typename Fits>
  __device__ void rank_rest(const Fits& fits) {
    int32_t& num_left = shared_.num_left[team_];
    if (thread_ == 0) num_left = 0;
    synchronise();
    // In any order: the ranking does not care.
    for_each_value([&](int v, int32_t page) {
      if (keys_[v] >= left_.low && keys_[v] < left_.high) {
        const int32_t place = atomicAdd(&num_left, 1);
        shared_.left_key[team_][place] = keys_[v];
        shared_.left_page[team_][place] = page;
      }
    });
    synchronise();
    if (thread_ < kWarp) rank(num_left, fits);
    synchronise();
  }

  // One warp, a key a lane.
  template <typename Fits>
  __device__ void rank(int32_t count, const Fits& fits) {
    const bool exists = thread_ < count;
    const uint32_t key = exists ? shared_.left_key[team_][thread_] : 0;
    const int32_t page = exists ? shared_.left_page[team_][thread_] : 0;
    int32_t rank = 0;
    for (int32_t i = 0; i < count; ++i) {
      const uint32_t other = shared_.left_key[team_][i];
      rank += other > key || (other == key && shared_.left_page[team_][i] < page);
    }
    __syncwarp();
    if (exists) shared_.left_key[team_][rank] = key;
    __syncwarp();
    double before = static_cast<double>(above_.sum);
    for (int32_t i = 0; i < rank; ++i) {
      before += static_cast<double>(__uint_as_float(shared_.left_key[team_][i]));
    }
    if (exists && fits(above_.count + rank, before)) take_page(page);
  }

  // All that is left has the same key: the first pages of it that fit.
  template <typename Fits>
  __device__ void take_equal(const Fits& fits) {
    const auto key = static_cast<uint32_t>(left_.low);
    const int32_t num_words = (num_pages_ + 31) / 32;
    for (int32_t i = thread_; i < num_words; i += kTeamThreads) shared_.equal[team_][i] = 0;
    synchronise();
    add_pages([&](int v) { return keys_[v] == key; }, shared_.equal[team_]);
    synchronise();
    const int32_t num_taken = num_equal_that_fit(key, fits);
    if (thread_ < kWarp) take_first_equal(num_taken, num_words);
    synchronise();
  }

  template <typename Fits>
  __device__ int32_t num_equal_that_fit(uint32_t key, const Fits& fits) const {
    int32_t low = 0;  // the first that does not fit is in [low, high]
    int32_t high = left_.count;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      const double before =
          static_cast<double>(above_.sum) + middle * static_cast<double>(__uint_as_float(key));
      if (fits(above_.count + middle, before)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // One warp, words in order.
  __device__ void take_first_equal(int32_t num_taken, int32_t num_words) {
    for (int32_t first = 0; first < num_words; first += kWarp) {
      const int32_t i = first + thread_;
      uint32_t word = i < num_words ? shared_.equal[team_][i] : 0;
      int32_t before = __popc(word);
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int32_t other = __shfl_up_sync(~0U, before, distance);
        if (thread_ >= distance) before += other;
      }
      const int32_t total = __shfl_sync(~0U, before, kWarp - 1);
      before -= __popc(word);
      // From the top, the bits that are too many.
      for (int32_t excess = before + __popc(word) - num_taken; excess > 0 && word != 0; --excess) {
        word &= ~(0x80000000U >> __clz(word));
      }
      if (word != 0) atomicOr(&shared_.chosen[i], word);
      num_taken -= total;
    }
  }

  __device__ void take_page(int32_t page) {
    atomicOr(&shared_.chosen[page / 32], 1U << (page % 32));
  }

  Shared& shared_;
  int team_;
  int thread_;
  int32_t num_pages_ = 0;
  Interval left_ = {};
  Above above_ = {0, 0};  // all keys left
  uint32_t keys_[kValues] = {};
};

template <int kWarps>
__device__ void store_choice(const ChoiceShared<kWarps>& shared,
                             const PageChoiceArguments& arguments, int32_t num_pages,
                             int32_t* count) {
  const int64_t tile = blockIdx.y * arguments.num_tiles + blockIdx.x;
  uint32_t* out = arguments.chosen + tile * (arguments.page_stride / 32);
  const int32_t num_words = (num_pages + 31) / 32;
  int32_t mine = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_words;
       i += static_cast<int32_t>(blockDim.x)) {
    out[i] = shared.chosen[i];
    mine += __popc(shared.chosen[i]);
  }
  mine = __reduce_add_sync(~0U, mine);
  if (threadIdx.x % kWarp == 0) atomicAdd(count, mine);
  __syncthreads();
  if (threadIdx.x == 0) arguments.count[tile] = *count;
}

// blockIdx.x is the tile, blockIdx.y the head. A warp per row where rows are short (kWarps is 1),
// else all warps on one row after the other.
template <int kWarps, bool kByMass>
__global__ void __launch_bounds__(kWarps == 1 ? kMostTeams * kWarp : kWarps * kWarp,
                                  kWarps == 32 ? 1 : 512 / (kWarps == 1 ? 256 : kWarps * kWarp))
    choice_kernel(const __grid_constant__ PageChoiceArguments arguments) {
  __shared__ ChoiceShared<kWarps> shared;
  __shared__ int32_t count;
  const int64_t tile = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int32_t num_pages = arguments.tile_pages[tile];
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < (num_pages + 31) / 32;
       i += static_cast<int32_t>(blockDim.x)) {
    shared.chosen[i] = 0;
  }
  if (threadIdx.x == 0) count = 0;
  __syncthreads();

  RowChoice<kWarps> row(shared);
  const int32_t num_rows = min(arguments.rows_per_tile, arguments.tile_rows[tile] + 1);
  const int first_row = kWarps == 1 ? static_cast<int>(threadIdx.x) / kWarp : 0;
  const int row_step = kWarps == 1 ? static_cast<int>(blockDim.x) / kWarp : 1;
  for (int32_t r = first_row; r < num_rows; r += row_step) {
    const int64_t at =
        ((head * arguments.num_tiles + tile) * arguments.rows_per_tile + r) * arguments.page_stride;
    if constexpr (kByMass) {
      row.cover(arguments.scores + at, arguments.exponents + at / kScorePages, num_pages,
                arguments.gamma[head]);
    } else {
      row.best(arguments.scores + at, num_pages, arguments.top_k[head] - 2);
    }
  }
  if (threadIdx.x == 0) {
    const auto take = [&](int32_t page) { atomicOr(&shared.chosen[page / 32], 1U << (page % 32)); };
    take(0);
    take(num_pages - 1);
    if (kByMass) take(max(num_pages - 2, 0));
  }
  __syncthreads();
  store_choice(shared, arguments, num_pages, &count);
}

template <bool kByMass>
void launch(const PageChoiceArguments& arguments, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(arguments.num_tiles),
                  static_cast<unsigned>(arguments.num_heads));
  const int num_teams = arguments.rows_per_tile < kMostTeams ? arguments.rows_per_tile : kMostTeams;
  if (arguments.page_stride <= ChoiceShared<1>::kPages) {
    choice_kernel<1, kByMass><<<grid, num_teams * kWarp, 0, stream>>>(arguments);
  } else if (arguments.page_stride <= ChoiceShared<4>::kPages) {
    choice_kernel<4, kByMass><<<grid, 4 * kWarp, 0, stream>>>(arguments);
  } else if (arguments.page_stride <= ChoiceShared<8>::kPages) {
    choice_kernel<8, kByMass><<<grid, 8 * kWarp, 0, stream>>>(arguments);
  } else {
    static_assert(kMostChoicePages == ChoiceShared<32>::kPages);
    choice_kernel<32, kByMass><<<grid, 32 * kWarp, 0, stream>>>(arguments);
  }
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace

void launch_choose_by_mass(const PageChoiceArguments& arguments, cudaStream_t stream) {
  launch<true>(arguments, stream);
}

void launch_choose_best(const PageChoiceArguments& arguments, cudaStream_t stream) {
  launch<false>(arguments, stream);
}

}  // namespace millrace::kernels::cuda
