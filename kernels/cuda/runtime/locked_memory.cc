// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/locked_memory.h"

#include <cuda_runtime_api.h>

#include "common/log.h"
#include "common/units.h"

namespace millrace::kernels::cuda {

namespace {

// Memory that is mapped read-only, such as another rank's pool, can only be locked as read-only. It
// is also faster: 8 GiB of a process' own memory took 0.24 s instead of 0.46 s on an H100.
unsigned int register_flags() {
  int device = 0;
  int reads = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&reads, cudaDevAttrHostRegisterReadOnlySupported,
                                            device) == cudaSuccess;
  const unsigned int flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  return known && reads != 0 ? flags | cudaHostRegisterReadOnly : flags;
}

}  // namespace

Result<void> LockedMemory::lock(std::span<const std::byte> memory) {
  const auto refused = [&](Errc code, const char* why) {
    return error(code, "{} of host memory cannot be page-locked: {}",
                 format_bytes(std::ssize(memory)), why);
  };
  void* const data = const_cast<std::byte*>(memory.data());  // nothing is written
  const cudaError_t status = cudaHostRegister(data, memory.size(), register_flags());
  if (status != cudaSuccess) {
    cudaGetLastError();  // clears it, or the next launch check would report it
    return refused(Errc::kExhausted, cudaGetErrorString(status));
  }
  void* seen = nullptr;
  if (cudaHostGetDevicePointer(&seen, data, 0) != cudaSuccess || seen != data) {
    cudaGetLastError();
    cudaHostUnregister(data);
    return refused(Errc::kUnsupported, "the GPU sees it under other addresses");
  }
  ranges_.add(memory);
  return {};
}

void LockedMemory::unlock(std::span<const std::byte> memory) noexcept {
  ranges_.remove(memory);
  if (cudaHostUnregister(const_cast<std::byte*>(memory.data())) != cudaSuccess) cudaGetLastError();
}

}  // namespace millrace::kernels::cuda
