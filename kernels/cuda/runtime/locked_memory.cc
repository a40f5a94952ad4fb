#include "kernels/cuda/runtime/locked_memory.h"

#include <cuda_runtime_api.h>

#include "common/log.h"
#include "common/units.h"

namespace millrace::kernels::cuda {

Result<void> LockedMemory::lock(std::span<std::byte> memory) {
  const auto refused = [&](Errc code, const char* why) {
    return error(code, "{} of host memory cannot be page-locked: {}",
                 format_bytes(std::ssize(memory)), why);
  };
  const cudaError_t status = cudaHostRegister(memory.data(), memory.size(),
                                              cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (status != cudaSuccess) {
    cudaGetLastError();  // not to be taken for a later launch's
    return refused(Errc::kExhausted, cudaGetErrorString(status));
  }
  void* seen = nullptr;
  if (cudaHostGetDevicePointer(&seen, memory.data(), 0) != cudaSuccess || seen != memory.data()) {
    cudaGetLastError();
    cudaHostUnregister(memory.data());
    return refused(Errc::kUnsupported, "the GPU sees it under other addresses");
  }
  ranges_.add(memory);
  return {};
}

void LockedMemory::unlock(std::span<std::byte> memory) noexcept {
  ranges_.remove(memory);
  if (cudaHostUnregister(memory.data()) != cudaSuccess) cudaGetLastError();
}

}  // namespace millrace::kernels::cuda
