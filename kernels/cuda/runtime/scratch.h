// SPDX-License-Identifier: Apache-2.0
// Temporary device memory of one operation, and copies of its small host arrays in device memory.
//
//   void some_operation(const SomeParams& params, Context& context) {
//     float* sums = context.scratch.allocate<float>(params.num_rows);
//     const RowTile* tiles = context.scratch.upload(params.tiles);
//     some_kernel<<<..., context.stream>>>(tiles, sums);
//   }
//
// Memory comes from the device's pool in stream order, and returns to it in stream order when the
// Scratch is destroyed, after the operation's launches are enqueued. So the host never waits, and
// the next operation gets the same bytes again. Pointers are 256-byte aligned, the memory is
// uninitialised. Running out of memory throws CudaError: a request is only admitted if its plan,
// which includes the scratch memory of operations, fits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace millrace::kernels::cuda {

class UploadRing;

class Scratch {
 public:
  Scratch(cudaStream_t stream, cudaMemPool_t pool, UploadRing& ring)
      : stream_(stream), pool_(pool), ring_(ring) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  // Null for a count of 0.
  template <typename T>
  T* allocate(int64_t count) {
    return static_cast<T*>(allocate_bytes(count * static_cast<int64_t>(sizeof(T))));
  }

  // A copy of `values` in device memory; `values` may be freed when the call returns.
  template <typename T>
  const std::remove_const_t<T>* upload(std::span<T> values) {
    using Element = std::remove_const_t<T>;
    static_assert(std::is_trivially_copyable_v<Element>);
    const auto count = static_cast<int64_t>(values.size());
    Element* copy = allocate<Element>(count);
    upload_bytes(copy, values.data(), count * static_cast<int64_t>(sizeof(T)));
    return copy;
  }

 private:
  void* allocate_bytes(int64_t bytes);
  void upload_bytes(void* device, const void* source, int64_t bytes);

  cudaStream_t stream_;
  cudaMemPool_t pool_;
  UploadRing& ring_;
  std::vector<void*> blocks_;
};

}  // namespace millrace::kernels::cuda
