// SPDX-License-Identifier: Apache-2.0
// Device memory for tests, filled from and read back as host values. There are known bytes before
// and after it, and inside it until it is written (tests/support/guarded_buffer.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/check.h"
#include "tests/support/guarded_buffer.h"

namespace millrace::kernels::cuda {

template <typename T>
class DeviceArray {
 public:
  // Unwritten elements read as NaN.
  explicit DeviceArray(int64_t count) : host_(count), count_(count) { to_device(); }
  explicit DeviceArray(const std::vector<T>& values)
      : host_(values), count_(static_cast<int64_t>(values.size())) {
    to_device();
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(memory_); }

  T* data() const { return reinterpret_cast<T*>(memory_ + kGuardBytes); }
  int64_t size() const { return count_; }

  // First wait for the kernels that write it.
  std::vector<T> values() {
    from_device();
    return host_.values();
  }
  bool guards_intact() {
    from_device();
    return host_.guards_intact();
  }

 private:
  static constexpr int64_t kGuardBytes = test::GuardedBuffer<T>::kGuardBytes;

  size_t total_bytes() const { return static_cast<size_t>(count_) * sizeof(T) + 2 * kGuardBytes; }
  std::byte* host_begin() { return reinterpret_cast<std::byte*>(host_.data()) - kGuardBytes; }
  void to_device() {
    MR_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&memory_), total_bytes()));
    MR_CUDA_CHECK(cudaMemcpy(memory_, host_begin(), total_bytes(), cudaMemcpyHostToDevice));
    // A copy from pageable memory may return before the data has arrived, and the test's stream
    // does not wait for it.
    MR_CUDA_CHECK(cudaDeviceSynchronize());
  }
  void from_device() {
    MR_CUDA_CHECK(cudaMemcpy(host_begin(), memory_, total_bytes(), cudaMemcpyDeviceToHost));
  }

  test::GuardedBuffer<T> host_;
  int64_t count_;
  std::byte* memory_ = nullptr;
};

}  // namespace millrace::kernels::cuda
