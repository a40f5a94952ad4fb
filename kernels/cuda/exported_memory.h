// SPDX-License-Identifier: Apache-2.0
// Device memory that other processes map through a file descriptor (the driver's virtual memory
// management). It stays allocated until the last process has unmapped it. With cudaMalloc and
// cudaIpcGetMemHandle, the allocating process would have to outlive all readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace::kernels::cuda {

// For one GPU, which must be current on the calling thread.
class ExportedMemory {
 public:
  struct Block {
    void* data = nullptr;
    int descriptor = -1;    // valid until free()
    int64_t num_bytes = 0;  // a multiple of the driver's allocation granularity
  };

  explicit ExportedMemory(int device) : device_(device) {}

  // kExhausted; kUnsupported, with the driver's reason.
  Result<Block> allocate(int64_t num_bytes);
  // False for memory that allocate() did not return. Waits for the device.
  bool free(void* data) noexcept;

 private:
  struct Allocation {
    unsigned long long memory = 0;  // CUmemGenericAllocationHandle
    size_t num_bytes = 0;
    FileDescriptor descriptor;
  };
  const int device_;
  std::unordered_map<void*, Allocation> allocations_;
};

}  // namespace millrace::kernels::cuda
