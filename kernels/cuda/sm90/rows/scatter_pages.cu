// SPDX-License-Identifier: Apache-2.0
// One launch for many pages: as single copies, the pages of a layer of 131,072 tokens and 8 heads would be
// 32,768 calls of the driver, which the engine's thread needs meanwhile.
#include "kernels/cuda/sm90/rows/scatter_pages.h"

#include <algorithm>
#include <cstdint>

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Few, so that concurrent operations keep most multiprocessors: nobody waits for these copies.
constexpr int64_t kMaxBlocks = 32;

struct ScatterArguments {
  std::byte* pages[kMaxScatteredPages];
  const std::byte* k;
  const std::byte* v;
  int32_t num_pages;
  int32_t half_bytes;
};

template <typename Word>
__device__ void copy_words(std::byte* to, const std::byte* from, int bytes) {
  const int count = bytes / static_cast<int>(sizeof(Word));
  auto* words_to = reinterpret_cast<Word*>(to);
  const auto* words_from = reinterpret_cast<const Word*>(from);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) words_to[i] = words_from[i];
}

// Each block takes one half of a page after the other.
__global__ void __launch_bounds__(kThreads)
    scatter_pages_kernel(const __grid_constant__ ScatterArguments arguments) {
  const int half_bytes = arguments.half_bytes;
  for (int i = static_cast<int>(blockIdx.x); i < 2 * arguments.num_pages;
       i += static_cast<int>(gridDim.x)) {
    const int page = i / 2;
    const bool is_second = i % 2 == 1;
    std::byte* to = arguments.pages[page] + (is_second ? half_bytes : 0);
    const std::byte* from = (is_second ? arguments.v : arguments.k) + int64_t{page} * half_bytes;
    const auto misaligned = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                             static_cast<uintptr_t>(half_bytes)) %
                            sizeof(uint4);
    if (misaligned == 0) {
      copy_words<uint4>(to, from, half_bytes);
    } else {
      copy_words<uint32_t>(to, from, half_bytes);
    }
  }
}

}  // namespace

void scatter_pages(const ScatterPagesParams& params, cudaStream_t stream) {
  MR_CHECK(std::ssize(params.pages) <= kMaxScatteredPages, "{} pages at a time",
           params.pages.size());
  MR_CHECK(params.page_bytes > 0 && params.page_bytes <= INT32_MAX && params.page_bytes % 8 == 0,
           "pages of {} bytes", params.page_bytes);
  if (params.pages.empty()) return;
  ScatterArguments arguments{.pages = {},
                             .k = static_cast<const std::byte*>(params.k),
                             .v = static_cast<const std::byte*>(params.v),
                             .num_pages = static_cast<int32_t>(params.pages.size()),
                             .half_bytes = static_cast<int32_t>(params.page_bytes / 2)};
  std::ranges::copy(params.pages, arguments.pages);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(2 * arguments.num_pages, kMaxBlocks));
  scatter_pages_kernel<<<blocks, kThreads, 0, stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
