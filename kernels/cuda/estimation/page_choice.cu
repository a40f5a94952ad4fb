// Choosing pages of one row of scores in three steps: a team of warps searches all pages until at
// most kFewPages are left, one warp searches those until a page a lane is left, and ranks these.
#include "kernels/cuda/estimation/page_choice.h"

#include "kernels/cuda/check.h"
#include "kernels/cuda/estimation/key_search.cuh"
#include "kernels/cuda/estimation/representative_scores.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kValues = 64;  // of a thread in the first step
constexpr int kFewValues = 16;
constexpr int kFewPages = kFewValues * kWarp;
// Rows that a single warp can hold: several to a block, one per representative.
constexpr int kMostTeams = 8;

// Of one team.
template <int kWarps>
struct TeamMemory {
  static constexpr int kPages = kWarps * kWarp * kValues;

  TeamShared<kWarps> wide;
  TeamShared<1> few;
  float factor[kPages / kScorePages];
  uint32_t equal[kPages / 32];  // pages at the threshold, where they are many
  uint32_t few_key[kFewPages];
  int32_t few_page[kFewPages];
  uint32_t ranked_key[kWarp];
  int32_t ranked_page[kWarp];
};

template <int kWarps>
struct ChoiceShared {
  static constexpr int kTeams = kWarps == 1 ? kMostTeams : 1;
  static constexpr int kPages = TeamMemory<kWarps>::kPages;

  uint32_t chosen[kPages / 32];
  int32_t count;
  TeamMemory<kWarps> team[kTeams];
};

// Sum over the lanes before this one, in a tree.
__device__ double sum_of_lanes_before(double value, int lane) {
  double sum = value;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const double other = __shfl_up_sync(~0U, sum, distance);
    if (lane >= distance) sum += other;
  }
  const double before = __shfl_up_sync(~0U, sum, 1);
  return lane == 0 ? 0 : before;
}

// Keeps the fewest pages whose masses reach a target.
struct ByMass {
  using Halve = HalveBits;
  double target;

  __device__ bool reached(const Above& above) const {
    return static_cast<double>(above.sum) >= target;
  }
};

// Keeps a number of pages.
struct ByCount {
  using Halve = HalveValues;
  int32_t wanted;

  __device__ bool reached(const Above& above) const { return above.count >= wanted; }
};

// One row at a time.
template <int kWarps>
class RowChoice {
  using Wide = KeySearch<kWarps, kValues>;
  using Few = KeySearch<1, kFewValues>;
  static constexpr int kThreads = Wide::kThreads;

 public:
  __device__ RowChoice(uint32_t* chosen, TeamMemory<kWarps>& memory, int thread)
      : chosen_(chosen), memory_(memory), thread_(thread), wide_(memory.wide, thread) {}

  // Adds the fewest pages whose masses reach gamma of the row's.
  __device__ void cover(const float* masses, const float* exponents, int32_t num_pages,
                        float gamma) {
    num_pages_ = num_pages;
    if (!align_exponents(exponents)) return take_all();
    // First all loads, then what needs them.
    const float* mine = masses + thread_;
    const int32_t reach = num_pages - thread_;
    wide_.load(num_pages, [&](int v) {
      return v * kThreads < reach ? __float_as_uint(mine[v * kThreads]) : 0U;
    });
    const float* factor = memory_.factor + thread_ / kScorePages;
    wide_.change([&](int v, uint32_t mass) {
      const int32_t page = v * kThreads;
      return page < reach ? __float_as_uint(__uint_as_float(mass) * factor[page / kScorePages])
                          : 0U;
    });
    int32_t num_mine = 0;
    const Above all = wide_.above(1, num_mine);
    // A NaN fails the comparison; its key is above all others, so it is in every sum.
    if (!(all.sum < INFINITY)) return take_all();
    const ByMass by_mass = {static_cast<double>(gamma) * static_cast<double>(all.sum)};
    // No mass is more than their sum, but for its rounding.
    wide_.start({.low = 1, .high = uint64_t{__float_as_uint(2 * all.sum)} + 1, .count = all.count},
                num_mine);
    // Pages below this share of what may be left out could all be left out.
    const float negligible = (1.0F - gamma) * all.sum / static_cast<float>(num_pages);
    wide_.split(__float_as_uint(negligible), [&](const Above& a) { return by_mass.reached(a); });
    take(by_mass);
  }

  // Adds the `wanted` pages of highest score after the first page and the last.
  __device__ void best(const float* scores, int32_t num_pages, int32_t wanted) {
    num_pages_ = num_pages;
    const int32_t available = num_pages - 2;
    if (wanted >= available) return take_all();
    if (wanted <= 0) return;
    const float* mine = scores + thread_;
    const int32_t reach = num_pages - 1 - thread_;
    wide_.load(num_pages, [&](int v) {
      const int32_t page = v * kThreads;
      return page < reach && page + thread_ > 0 ? __float_as_uint(mine[page]) : 0U;
    });
    int32_t num_mine = 0;
    wide_.change([&](int v, uint32_t score) {
      const int32_t page = v * kThreads;
      const bool in_choice = page < reach && page + thread_ > 0;
      num_mine += in_choice;
      return in_choice ? max(ascending_bits(__uint_as_float(score)), 1U) : 0U;
    });
    wide_.start(wide_.extent(available), num_mine);
    take(ByCount{wanted});
  }

 private:
  // Factors that bring the groups of pages to the exponent of the largest. False if that is no
  // number.
  __device__ bool align_exponents(const float* exponents) {
    const int32_t num_groups = (num_pages_ + kScorePages - 1) / kScorePages;
    float largest = -INFINITY;
    for (int32_t i = thread_; i < num_groups; i += kThreads) largest = fmaxf(largest, exponents[i]);
    largest = wide_.maximum(largest);
    if (!(largest < INFINITY)) return false;
    for (int32_t i = thread_; i < num_groups; i += kThreads) {
      const float difference = exponents[i] - largest;
      // 2^difference; what would be subnormal is nothing beside the largest page.
      memory_.factor[i] =
          difference < -126.0F
              ? 0.0F
              : __uint_as_float(static_cast<uint32_t>(127 + static_cast<int>(difference)) << 23);
    }
    Wide::synchronise();
    return true;
  }

  // Takes what lies above the place where the keys reach the target, and of those at it the first.
  template <typename Rule>
  __device__ void take(const Rule& rule) {
    const auto reached = [&](const Above& above) { return rule.reached(above); };
    wide_.narrow(kFewPages, typename Rule::Halve(), reached);
    if (wide_.above_left().count > 0) {
      add_pages([&](int v) { return wide_.key(v) >= wide_.left().high; }, chosen_);
    }
    if (wide_.left().count > kFewPages) {
      mark_equal();
      if (thread_ < kWarp) take_first_equal(wide_.left(), wide_.above_left(), rule);
    } else {
      gather();
      if (thread_ < kWarp) take_few(rule);
    }
    Wide::synchronise();
  }

  // What is left, by thread and then by place.
  __device__ void gather() {
    int32_t place = wide_.count_before(wide_.mine_left());
    const uint64_t low = wide_.left().low;
    const auto first = static_cast<uint32_t>(low);
    const auto length = static_cast<uint32_t>(wide_.left().high - low);
    Wide::for_each_value(num_pages_, [&](int v) {
      if (wide_.key(v) - first < length) {
        memory_.few_key[place] = wide_.key(v);
        memory_.few_page[place] = v * kThreads + thread_;
        ++place;
      }
    });
    Wide::synchronise();
  }

  // One warp, on what was gathered.
  template <typename Rule>
  __device__ void take_few(const Rule& rule) {
    const Above base = wide_.above_left();
    const auto plus_base = [&](Above above) {
      return Above{above.sum + base.sum, above.count + base.count};
    };
    const int32_t count = wide_.left().count;
    Few few(memory_.few, thread_);
    int32_t num_mine = 0;
    few.load(count, [&](int v) {
      const int32_t place = v * kWarp + thread_;
      num_mine += place < count;
      return place < count ? memory_.few_key[place] : 0U;
    });
    few.start(wide_.left(), num_mine);
    few.narrow(kWarp, typename Rule::Halve(),
               [&](const Above& above) { return rule.reached(plus_base(above)); });
    const Above above = plus_base(few.above_left());
    take_few_above(few);
    if (few.left().count > kWarp) {
      mark_few_equal(few);
      take_first_equal(few.left(), above, rule);
    } else {
      take_ranked(few, above, rule);
    }
  }

  __device__ void take_few_above(const Few& few) {
    if (few.above_left().count == 0) return;
    Few::for_each_value(wide_.left().count, [&](int v) {
      if (few.key(v) >= few.left().high) take_page(memory_.few_page[v * kWarp + thread_]);
    });
  }

  // At most a page a lane: in order of keys, then of pages.
  template <typename Rule>
  __device__ void take_ranked(Few& few, const Above& above, const Rule& rule) {
    int32_t place = few.count_before(few.mine_left());
    Few::for_each_value(wide_.left().count, [&](int v) {
      if (few.key(v) >= few.left().low && few.key(v) < few.left().high) {
        memory_.ranked_key[place] = few.key(v);
        memory_.ranked_page[place] = memory_.few_page[v * kWarp + thread_];
        ++place;
      }
    });
    __syncwarp();
    const int32_t count = few.left().count;
    const bool exists = thread_ < count;
    const uint32_t key = exists ? memory_.ranked_key[thread_] : 0;
    const int32_t page = exists ? memory_.ranked_page[thread_] : 0;
    int32_t rank = 0;
    for (int32_t i = 0; i < count; ++i) {
      const uint32_t other = __shfl_sync(~0U, key, i);
      const int32_t other_page = __shfl_sync(~0U, page, i);
      rank += other > key || (other == key && other_page < page);
    }
    __syncwarp();
    if (exists) {
      memory_.ranked_key[rank] = key;
      memory_.ranked_page[rank] = page;
    }
    __syncwarp();
    const float mass = exists ? __uint_as_float(memory_.ranked_key[thread_]) : 0.0F;
    const double sum = above_sum(above) + sum_of_lanes_before(static_cast<double>(mass), thread_);
    if (exists && !reached_before(rule, sum, above.count + thread_)) {
      take_page(memory_.ranked_page[thread_]);
    }
    __syncwarp();
  }

  __device__ static double above_sum(const Above& above) { return static_cast<double>(above.sum); }
  __device__ static bool reached_before(const ByMass& rule, double sum, int32_t) {
    return sum >= rule.target;
  }
  __device__ static bool reached_before(const ByCount& rule, double, int32_t count) {
    return count >= rule.wanted;
  }

  // Sets the bits of the pages for which is_in(v).
  template <typename IsIn>
  __device__ void add_pages(const IsIn& is_in, uint32_t* bits) {
    uint32_t words[kValues / kWarp] = {};
    Wide::for_each_value(num_pages_, [&](int v) {
      const uint32_t ballot = __ballot_sync(~0U, is_in(v));
      if (thread_ % kWarp == v % kWarp) words[v / kWarp] = ballot;
    });
#pragma unroll
    for (int i = 0; i < kValues / kWarp; ++i) {
      const int word = (i * kWarp + thread_ % kWarp) * kWarps + thread_ / kWarp;
      if (words[i] != 0) atomicOr(&bits[word], words[i]);
    }
  }

  __device__ int32_t num_words() const {
    return (num_pages_ + 31) / 32;
  }

  __device__ void take_page(int32_t page) {
    atomicOr(&chosen_[page / 32], 1U << (page % 32));
  }

  __device__ void take_all() {
    for (int32_t i = thread_; i < num_words(); i += kThreads) {
      const int32_t bits = min(num_pages_ - 32 * i, 32);
      atomicOr(&chosen_[i], bits == 32 ? ~0U : (1U << bits) - 1);
    }
  }

  __device__ void mark_equal() {
    for (int32_t i = thread_; i < num_words(); i += kThreads) memory_.equal[i] = 0;
    Wide::synchronise();
    const auto key = static_cast<uint32_t>(wide_.left().low);
    add_pages([&](int v) { return wide_.key(v) == key; }, memory_.equal);
    Wide::synchronise();
  }

  __device__ void mark_few_equal(const Few& few) {
    for (int32_t i = thread_; i < num_words(); i += kWarp) memory_.equal[i] = 0;
    __syncwarp();
    const auto key = static_cast<uint32_t>(few.left().low);
    Few::for_each_value(wide_.left().count, [&](int v) {
      if (few.key(v) != key) return;
      const int32_t page = memory_.few_page[v * kWarp + thread_];
      atomicOr(&memory_.equal[page / 32], 1U << (page % 32));
    });
    __syncwarp();
  }

  // All that is left has the same key: the first pages of it. One warp, words in order.
  template <typename Rule>
  __device__ void take_first_equal(const Interval& left, const Above& above, const Rule& rule) {
    int32_t num_taken = num_equal_taken(left, above, rule);
    for (int32_t first = 0; first < num_words(); first += kWarp) {
      const int32_t i = first + thread_;
      uint32_t word = i < num_words() ? memory_.equal[i] : 0;
      const int32_t count = __popc(word);
      int32_t sum = count;
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int32_t other = __shfl_up_sync(~0U, sum, distance);
        if (thread_ >= distance) sum += other;
      }
      // From the top, the bits that are too many.
      for (int32_t excess = sum - num_taken; excess > 0 && word != 0; --excess) {
        word &= ~(0x80000000U >> __clz(static_cast<int>(word)));
      }
      if (word != 0) atomicOr(&chosen_[i], word);
      num_taken -= __shfl_sync(~0U, sum, kWarp - 1);
    }
  }

  template <typename Rule>
  __device__ static int32_t num_equal_taken(const Interval& left, const Above& above,
                                            const Rule& rule) {
    const auto value = static_cast<double>(__uint_as_float(static_cast<uint32_t>(left.low)));
    int32_t low = 0;  // the number is in [low, high]
    int32_t high = left.count;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (reached_before(rule, above_sum(above) + middle * value, above.count + middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  uint32_t* chosen_;
  TeamMemory<kWarps>& memory_;
  int thread_;
  int32_t num_pages_ = 0;
  Wide wide_;
};

template <int kWarps>
__device__ void store_choice(ChoiceShared<kWarps>& shared, const PageChoiceArguments& arguments,
                             int32_t num_pages) {
  const int64_t tile = blockIdx.y * arguments.num_tiles + blockIdx.x;
  uint32_t* out = arguments.chosen + tile * (arguments.page_stride / 32);
  const int32_t num_words = (num_pages + 31) / 32;
  int32_t count = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_words;
       i += static_cast<int32_t>(blockDim.x)) {
    out[i] = shared.chosen[i];
    count += __popc(shared.chosen[i]);
  }
  count = __reduce_add_sync(~0U, count);
  if (threadIdx.x % kWarp == 0) atomicAdd(&shared.count, count);
  __syncthreads();
  if (threadIdx.x == 0) arguments.count[tile] = shared.count;
}

// blockIdx.x is the tile, blockIdx.y the head. A warp per row where rows are short (kWarps is 1),
// else all warps on one row after the other.
template <int kWarps, bool kByMass>
__global__ void __launch_bounds__(kWarps == 1 ? kMostTeams * kWarp : kWarps * kWarp,
                                  kWarps == 32 ? 1 : 512 / (kWarps == 1 ? 256 : kWarps * kWarp))
    choice_kernel(const __grid_constant__ PageChoiceArguments arguments) {
  __shared__ ChoiceShared<kWarps> shared;
  const int64_t tile = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int32_t num_pages = arguments.tile_pages[tile];
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < (num_pages + 31) / 32;
       i += static_cast<int32_t>(blockDim.x)) {
    shared.chosen[i] = 0;
  }
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();

  const int team = kWarps == 1 ? static_cast<int>(threadIdx.x) / kWarp : 0;
  const int num_teams = kWarps == 1 ? static_cast<int>(blockDim.x) / kWarp : 1;
  RowChoice<kWarps> row(shared.chosen, shared.team[team],
                        static_cast<int>(threadIdx.x) - team * kWarp);
  const int32_t num_rows = min(arguments.rows_per_tile, arguments.tile_rows[tile] + 1);
  for (int32_t r = team; r < num_rows; r += num_teams) {
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
  store_choice(shared, arguments, num_pages);
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
