// The functions of NVIDIA's driver that the client calls, from libcuda.so.1 where the process has
// one: built without CUDA, one library serves hosts with and without GPUs. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "common/result.h"

namespace millrace::kvclient {

// As cuda.h declares them: the driver's binary interface, stable since CUDA 4.
struct CudaDriver {
  using Status = int;
  using Address = unsigned long long;

  Status (*init)(unsigned flags);
  Status (*device_get)(int* device, int ordinal);
  Status (*retain_primary_context)(void** context, int device);
  Status (*release_primary_context)(int device);
  Status (*push_context)(void* context);
  Status (*pop_context)(void** context);
  Status (*load_module)(void** module, const void* image);
  Status (*unload_module)(void* module);
  Status (*get_function)(void** function, void* module, const char* name);
  Status (*create_stream)(void** stream, unsigned flags);
  Status (*destroy_stream)(void* stream);
  Status (*synchronize)(void* stream);
  Status (*allocate)(Address* address, size_t bytes);
  Status (*free)(Address address);
  Status (*allocate_host)(void** memory, size_t bytes, unsigned flags);
  Status (*free_host)(void* memory);
  Status (*copy_to_device)(Address to, const void* from, size_t bytes, void* stream);
  Status (*copy_to_host)(void* to, Address from, size_t bytes);
  Status (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** parameters, void** extra);
  Status (*error_name)(Status status, const char** name);

  // Loaded and initialised once. kUnsupported: there is none, or no GPU.
  static Result<const CudaDriver*> get();
  // kInternal, with the driver's name for it.
  Result<void> check(Status status, const char* what) const;
};

}  // namespace millrace::kvclient
