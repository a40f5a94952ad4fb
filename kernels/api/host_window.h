// SPDX-License-Identifier: Apache-2.0
// A host view of pieces of device memory, for code that works on host memory: collectives, files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "kernels/api/device_memory.h"

namespace millrace::kernels {

// If device memory is host memory, the view is that memory itself and nothing is copied. Otherwise all
// views share one piece of page-locked memory: a view is valid until the next call of read() or fill().
class HostWindow {
 public:
  // For views of at most `max_bytes`.
  static Result<HostWindow> create(DeviceMemory& device, int64_t max_bytes);

  int64_t max_bytes() const { return max_bytes_; }

  // Waits for all operations called so far, then returns the contents of the `bytes` at `data`.
  Result<std::span<std::byte>> read(const void* data, int64_t bytes, Deadline deadline);
  // Returns room for new contents of the `bytes` at `data`, uninitialised. Waits like read().
  Result<std::span<std::byte>> fill(void* data, int64_t bytes, Deadline deadline);
  // Copies the view of `data` back to the device. Operations called afterwards see it.
  void write(void* data, int64_t bytes);

 private:
  HostWindow(DeviceMemory& device, int64_t max_bytes) : device_(&device), max_bytes_(max_bytes) {}

  bool direct() const { return staging_.bytes() == 0; }

  DeviceMemory* device_;
  int64_t max_bytes_;
  HostBuffer staging_;  // empty where the view is the memory itself
};

}  // namespace millrace::kernels
