// SPDX-License-Identifier: Apache-2.0
// Chooses pages by one row of scores in three steps: a team of warps searches all pages until at
// most kFewPages are left, one warp searches those until at most one page per lane is left, and
// ranks these.
#include "kernels/cuda/sm90/estimation/block_sparse/page_choice.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/block_sparse/key_search.cuh"
#include "kernels/cuda/sm90/estimation/choice_shared.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kValues = 64;  // per thread in the first step
constexpr int kFewValues = 16;
constexpr int kFewPages = kFewValues * kWarp;

template <int kWarps>
struct ChoiceShared {
  static constexpr int kPages = kWarps * kWarp * kValues;

  uint32_t chosen[kPages / 32];
  int32_t count;
  TeamShared<kWarps> wide;
  TeamShared<1> few;
  uint32_t equal[kPages / 32];  // pages at the threshold, if there are many
  uint32_t few_key[kFewPages];
  int32_t few_page[kFewPages];
  uint32_t ranked_key[kWarp];
  int32_t ranked_page[kWarp];
};

template <int kWarps>
class RowChoice {
  using Wide = KeySearch<kWarps, kValues>;
  using Few = KeySearch<1, kFewValues>;
  static constexpr int kThreads = Wide::kThreads;

 public:
  __device__ RowChoice(ChosenPages& chosen, ChoiceShared<kWarps>& memory)
      : chosen_(chosen),
        memory_(memory),
        thread_(static_cast<int>(threadIdx.x)),
        wide_(memory.wide, thread_) {}

  // Adds the `wanted` pages of highest score after the first page and the last.
  __device__ void best(const float* scores, int32_t num_pages, int32_t wanted) {
    num_pages_ = num_pages;
    const int32_t available = num_pages - 2;
    if (wanted >= available) return chosen_.add_all(thread_, kThreads);
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
    take(wanted);
  }

 private:
  // Takes the keys above the place where `wanted` keys are reached, and the first of those at it.
  __device__ void take(int32_t wanted) {
    wide_.narrow(kFewPages, wanted);
    if (wide_.above_left() > 0) {
      add_pages([&](int v) { return wide_.key(v) >= wide_.left().high; },
                [&](int32_t word, uint32_t pages) { chosen_.add_word(word, pages); });
    }
    if (wide_.left().count > kFewPages) {
      mark_equal();
      if (thread_ < kWarp) take_first_equal(wanted - wide_.above_left());
    } else {
      gather();
      if (thread_ < kWarp) take_few(wanted - wide_.above_left());
    }
    Wide::synchronise();
  }

  // Gathers the keys that are left, by thread and then by place.
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

  // Takes `wanted` of the gathered keys. One warp.
  __device__ void take_few(int32_t wanted) {
    const int32_t count = wide_.left().count;
    Few few(memory_.few, thread_);
    int32_t num_mine = 0;
    few.load(count, [&](int v) {
      const int32_t place = v * kWarp + thread_;
      num_mine += place < count;
      return place < count ? memory_.few_key[place] : 0U;
    });
    few.start(wide_.left(), num_mine);
    few.narrow(kWarp, wanted);
    if (few.above_left() > 0) {
      Few::for_each_value(count, [&](int v) {
        if (few.key(v) >= few.left().high) chosen_.add(memory_.few_page[v * kWarp + thread_]);
      });
    }
    if (few.left().count > kWarp) {
      mark_few_equal(few);
      take_first_equal(wanted - few.above_left());
    } else {
      take_ranked(few, wanted - few.above_left());
    }
  }

  // Takes from at most one page per lane, in order of keys, then of pages.
  __device__ void take_ranked(Few& few, int32_t wanted) {
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
    if (exists && rank < wanted) chosen_.add(page);
    __syncwarp();
  }

  // Calls add(word, pages) for the pages for which is_in(v).
  template <typename IsIn, typename Add>
  __device__ void add_pages(const IsIn& is_in, const Add& add) {
    uint32_t words[kValues / kWarp] = {};
    Wide::for_each_value(num_pages_, [&](int v) {
      const uint32_t ballot = __ballot_sync(~0U, is_in(v));
      if (thread_ % kWarp == v % kWarp) words[v / kWarp] = ballot;
    });
#pragma unroll
    for (int i = 0; i < kValues / kWarp; ++i) {
      const int word = (i * kWarp + thread_ % kWarp) * kWarps + thread_ / kWarp;
      if (words[i] != 0) add(word, words[i]);
    }
  }

  __device__ int32_t num_words() const {
    return (num_pages_ + 31) / 32;
  }

  __device__ void mark_equal() {
    for (int32_t i = thread_; i < num_words(); i += kThreads) memory_.equal[i] = 0;
    Wide::synchronise();
    const auto key = static_cast<uint32_t>(wide_.left().low);
    add_pages([&](int v) { return wide_.key(v) == key; },
              [&](int32_t word, uint32_t pages) { atomicOr(&memory_.equal[word], pages); });
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

  // Takes the first `wanted` pages of memory_.equal. One warp, words in order.
  __device__ void take_first_equal(int32_t wanted) {
    for (int32_t first = 0; first < num_words() && wanted > 0; first += kWarp) {
      const int32_t i = first + thread_;
      uint32_t word = i < num_words() ? memory_.equal[i] : 0;
      int32_t sum = __popc(word);
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int32_t other = __shfl_up_sync(~0U, sum, distance);
        if (thread_ >= distance) sum += other;
      }
      // Clears the surplus bits, from the top.
      for (int32_t excess = sum - wanted; excess > 0 && word != 0; --excess) {
        word &= ~(0x80000000U >> __clz(static_cast<int>(word)));
      }
      chosen_.add_word(i, word);
      wanted -= __shfl_sync(~0U, sum, kWarp - 1);
    }
  }

  ChosenPages& chosen_;
  ChoiceShared<kWarps>& memory_;
  int thread_;
  int32_t num_pages_ = 0;
  Wide wide_;
};

// blockIdx.x is the tile, blockIdx.y the head.
template <int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, kWarps == 32 ? 1 : 16 / kWarps)
    choice_kernel(const __grid_constant__ BestChoiceArguments arguments) {
  __shared__ ChoiceShared<kWarps> shared;
  const ChoiceTiles& tiles = arguments.tiles;
  const int64_t tile = blockIdx.y * tiles.num_tiles + blockIdx.x;
  const int32_t num_pages = tiles.tile_pages[blockIdx.x];
  ChosenPages chosen(shared.chosen, &shared.count, num_pages);
  chosen.clear();
  __syncthreads();
  RowChoice<kWarps>(chosen, shared)
      .best(arguments.scores + tile * tiles.page_stride, num_pages,
            arguments.top_k[blockIdx.y] - 2);
  if (threadIdx.x == 0) {
    chosen.add(0);
    chosen.add(num_pages - 1);
  }
  __syncthreads();
  chosen.store(tiles, tile);
}

template <int kWarps>
void launch(const BestChoiceArguments& arguments, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(arguments.tiles.num_tiles),
                  static_cast<unsigned>(arguments.tiles.num_heads));
  choice_kernel<kWarps><<<grid, kWarps * kWarp, 0, stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace

void launch_choose_best(const BestChoiceArguments& arguments, cudaStream_t stream) {
  const int64_t num_pages = arguments.tiles.page_stride;
  if (num_pages <= ChoiceShared<1>::kPages) {
    launch<1>(arguments, stream);
  } else if (num_pages <= ChoiceShared<4>::kPages) {
    launch<4>(arguments, stream);
  } else if (num_pages <= ChoiceShared<8>::kPages) {
    launch<8>(arguments, stream);
  } else {
    static_assert(kMaxChoicePages == ChoiceShared<32>::kPages);
    launch<32>(arguments, stream);
  }
}

}  // namespace millrace::kernels::cuda
