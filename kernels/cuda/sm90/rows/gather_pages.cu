// SPDX-License-Identifier: Apache-2.0
// Each warp moves one page at a time through a buffer of its own in shared memory:
//   copy engine: page, host -> buffer
//   copy engine: halves, buffer -> device     meanwhile the warp: checksum of the buffer
// So one multiprocessor reads some 26 GB/s from the host, and two saturate the bus, which takes
// eight with ordinary loads (docs/notebook/prefix-on-gpus.md).
#include "kernels/cuda/sm90/rows/gather_pages.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/page_checksum.cuh"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/ptx/barrier.cuh"
#include "kernels/cuda/sm90/ptx/copy.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int64_t kMaxPageBytes = 64 << 10;
// As many pages in flight as shared memory holds: throughput grows with the bytes in flight.
constexpr int64_t kBufferBytes = 3 * kMaxPageBytes;
constexpr int kMaxWarps = 24;
// From device memory a block takes what it can verify, some 27 GB/s; three gathers at once brought
// 82 GB/s, and a layer of 131,072 tokens in 16 bits waited 2.7 ms for its pages.
constexpr int64_t kDeviceBytesOfBlock = 1 << 20;
constexpr int64_t kMaxBlocks = 8;

struct GatherArguments {
  SourcePage pages[kMaxGatheredPages];
  std::byte* k;
  std::byte* v;
  int32_t num_pages;
  int32_t page_bytes;
  int32_t* damaged;
};

__global__ void __launch_bounds__(kMaxWarps * 32)
    gather_pages_kernel(const __grid_constant__ GatherArguments arguments) {
  extern __shared__ __align__(128) std::byte buffers[];  // [warps, page bytes]
  __shared__ uint64_t arrivals[kMaxWarps];
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool leads = threadIdx.x % 32 == 0;
  const int page_bytes = arguments.page_bytes;
  const int half_bytes = page_bytes / 2;
  std::byte* const buffer = buffers + warp * page_bytes;
  uint64_t* const arrived = &arrivals[warp];
  if (leads) {
    ptx::barrier_init(arrived, 1);
    ptx::fence_barrier_init();
    ptx::fence_async_shared();
  }
  __syncwarp();

  uint32_t parity = 0;
  const int first = static_cast<int>(blockIdx.x) * num_warps + warp;
  const int step = static_cast<int>(gridDim.x) * num_warps;
  for (int i = first; i < arguments.num_pages; i += step) {
    const SourcePage& page = arguments.pages[i];
    const uint32_t shared = ptx::shared_address(buffer);
    if (leads) {
      ptx::wait_for_stores_to_read();
      ptx::barrier_arrive_expecting(arrived, static_cast<uint32_t>(page_bytes));
      ptx::copy_bytes(shared, page.bytes, static_cast<uint32_t>(page_bytes), arrived);
    }
    ptx::barrier_wait(arrived, parity);
    parity ^= 1;
    if (leads) {
      const int64_t row = int64_t{i} * half_bytes;
      ptx::store_bytes(arguments.k + row, shared, static_cast<uint32_t>(half_bytes));
      ptx::store_bytes(arguments.v + row, shared + static_cast<uint32_t>(half_bytes),
                       static_cast<uint32_t>(half_bytes));
      ptx::commit_stores();
    }
    const uint64_t checksum = page_checksum<true>(buffer, page_bytes / kChecksumBlockBytes);
    if (leads && checksum != page.checksum) *arguments.damaged = i;
    __syncwarp();  // all lanes have read the buffer
  }
  if (leads) ptx::wait_for_stores_to_read();
}

}  // namespace

void gather_pages(const GatherPagesParams& params, int32_t* damaged, cudaStream_t stream) {
  MR_CHECK(std::ssize(params.pages) <= kMaxGatheredPages, "{} pages at a time",
           params.pages.size());
  MR_CHECK(params.page_bytes > 0 && params.page_bytes <= kMaxPageBytes &&
               params.page_bytes % kChecksumBlockBytes == 0,
           "pages of {} bytes", params.page_bytes);
  if (params.pages.empty()) return;
  GatherArguments arguments{.pages = {},
                            .k = static_cast<std::byte*>(params.k),
                            .v = static_cast<std::byte*>(params.v),
                            .num_pages = static_cast<int32_t>(params.pages.size()),
                            .page_bytes = static_cast<int32_t>(params.page_bytes),
                            .damaged = damaged};
  std::ranges::copy(params.pages, arguments.pages);
  const int warps =
      static_cast<int>(std::min<int64_t>(kMaxWarps, kBufferBytes / params.page_bytes));
  const int bytes = warps * arguments.page_bytes;
  MR_CUDA_CHECK(cudaFuncSetAttribute(gather_pages_kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(
      params.num_in_device * params.page_bytes / kDeviceBytesOfBlock, 1, kMaxBlocks));
  gather_pages_kernel<<<blocks, warps * 32, static_cast<size_t>(bytes), stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
