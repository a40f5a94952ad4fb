// SPDX-License-Identifier: Apache-2.0
// The pages of a tile, as bits in shared memory, while a block chooses them.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {

class ChosenPages {
 public:
  // `words` has a bit per page of the tile.
  __device__ ChosenPages(uint32_t* words, int32_t* count, int32_t num_pages)
      : words_(words), count_(count), num_pages_(num_pages) {}

  // Called by all threads of the block, which then synchronises.
  __device__ void clear() {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_words();
         i += static_cast<int32_t>(blockDim.x)) {
      words_[i] = 0;
    }
    if (threadIdx.x == 0) *count_ = 0;
  }

  __device__ void add(int32_t page) { atomicOr(&words_[page / 32], 1U << (page % 32)); }
  // Adds pages among the 32 that begin at 32 * word.
  __device__ void add_word(int32_t word, uint32_t pages) {
    if (pages != 0) atomicOr(&words_[word], pages);
  }
  // Adds all pages, divided among the num_threads threads of a team.
  __device__ void add_all(int32_t thread, int32_t num_threads) {
    for (int32_t i = thread; i < num_words(); i += num_threads) {
      const int32_t bits = min(num_pages_ - 32 * i, 32);
      add_word(i, bits == 32 ? ~0U : (1U << bits) - 1);
    }
  }

  // Called by all threads, after all have added theirs and the block has synchronised. `tile`
  // counts through the tiles of all heads.
  __device__ void store(const ChoiceTiles& tiles, int64_t tile) {
    uint32_t* out = tiles.chosen + tile * (tiles.page_stride / 32);
    int32_t count = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_words();
         i += static_cast<int32_t>(blockDim.x)) {
      out[i] = words_[i];
      count += __popc(words_[i]);
    }
    count = __reduce_add_sync(~0U, count);
    if (threadIdx.x % 32 == 0) atomicAdd(count_, count);
    __syncthreads();
    if (threadIdx.x == 0) tiles.count[tile] = *count_;
  }

 private:
  __device__ int32_t num_words() const { return (num_pages_ + 31) / 32; }

  uint32_t* words_;
  int32_t* count_;
  int32_t num_pages_;
};

}  // namespace millrace::kernels::cuda
