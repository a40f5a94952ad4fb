// Device memory with a descriptor by which other processes map it: the driver's virtual memory
// management. Unlike cudaMalloc's, whose handles name memory of a process that must outlive its
// readers (cudaIpcGetMemHandle), it stays until the last of them has let go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace::kernels::cuda {

// Of one GPU, which is current on the calling thread.
class ExportedMemory {
 public:
  struct Block {
    void* data = nullptr;
    int descriptor = -1;    // until free()
    int64_t num_bytes = 0;  // whole units of the driver's
  };

  explicit ExportedMemory(int device) : device_(device) {}

  // kExhausted; kUnsupported, with the driver's reason.
  Result<Block> allocate(int64_t num_bytes);
  // False for memory that is not of here. Waits for the device.
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
