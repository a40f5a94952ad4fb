// SPDX-License-Identifier: Apache-2.0
// The functions of NVIDIA's driver that the client calls, loaded from libcuda.so.1 if the process
// finds one. So one library, built without CUDA, serves hosts with and without GPUs. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "common/result.h"

namespace millrace::kvclient {

// As cuda.h declares them: the driver's binary interface, stable since CUDA 4 (for mapped memory,
// since 10.2).
struct CudaDriver {
  using Status = int;
  using Address = unsigned long long;
  using MemoryHandle = unsigned long long;
  // CUmemAccessDesc: which device may access a range of addresses, and how.
  struct MemoryAccess {
    int location_type;
    int location_id;
    int flags;
  };

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
  Status (*import_memory)(MemoryHandle* memory, void* os_handle, int handle_type);
  Status (*release_memory)(MemoryHandle memory);
  Status (*reserve_addresses)(Address* address, size_t bytes, size_t alignment, Address at,
                              unsigned long long flags);
  Status (*free_addresses)(Address address, size_t bytes);
  Status (*map_memory)(Address address, size_t bytes, size_t offset, MemoryHandle memory,
                       unsigned long long flags);
  Status (*unmap_memory)(Address address, size_t bytes);
  Status (*set_access)(Address address, size_t bytes, const MemoryAccess* access, size_t count);
  Status (*error_name)(Status status, const char** name);

  // Loaded and initialised once. kUnsupported: there is no driver, or no GPU.
  static Result<const CudaDriver*> get();
  // kInternal, with the driver's name for the error.
  Result<void> check(Status status, const char* what) const;
};

}  // namespace millrace::kvclient
