// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/exported_memory.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <utility>

#include "common/units.h"

namespace millrace::kernels::cuda {

namespace {

constexpr auto kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Looked up through the runtime, as in runtime/tensor_map.cc. Null if the driver is older.
struct Driver {
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 export_handle = nullptr;
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free_addresses = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;

  Driver() {
    complete =
        find(granularity, "cuMemGetAllocationGranularity") && find(create, "cuMemCreate") &&
        find(release, "cuMemRelease") && find(export_handle, "cuMemExportToShareableHandle") &&
        find(reserve, "cuMemAddressReserve") && find(free_addresses, "cuMemAddressFree") &&
        find(map, "cuMemMap") && find(unmap, "cuMemUnmap") && find(set_access, "cuMemSetAccess");
  }
  bool complete = false;

 private:
  template <typename Function>
  static bool find(Function& function, const char* name) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const auto status =
        cudaGetDriverEntryPointByVersion(name, &entry, 10020, cudaEnableDefault, &found);
    if (status != cudaSuccess) cudaGetLastError();  // or the next launch check would report it
    function = reinterpret_cast<Function>(entry);
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  }
};

const Driver& the_driver() {
  static const Driver driver;
  return driver;
}

Result<void> check(CUresult status, int64_t num_bytes, const char* what) {
  if (status == CUDA_SUCCESS) return {};
  return error(status == CUDA_ERROR_OUT_OF_MEMORY ? Errc::kExhausted : Errc::kUnsupported,
               "{} of device memory that can be shared: {} ended with the driver's error {}",
               format_bytes(num_bytes), what, static_cast<int>(status));
}

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kHandleType;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return properties;
}

Result<void> map(CUdeviceptr address, size_t num_bytes, CUmemGenericAllocationHandle memory,
                 int device) {
  const Driver& driver = the_driver();
  const auto size = static_cast<int64_t>(num_bytes);
  MR_RETURN_IF_ERROR(check(driver.map(address, num_bytes, 0, memory, 0), size, "cuMemMap"));
  const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  auto reached = check(driver.set_access(address, num_bytes, &access, 1), size, "cuMemSetAccess");
  if (!reached.ok()) driver.unmap(address, num_bytes);
  return reached;
}

// Maps the memory wherever the driver has room, and returns the address.
Result<CUdeviceptr> map_anywhere(size_t num_bytes, CUmemGenericAllocationHandle memory,
                                 int device) {
  const Driver& driver = the_driver();
  CUdeviceptr address = 0;
  MR_RETURN_IF_ERROR(check(driver.reserve(&address, num_bytes, 0, 0, 0),
                           static_cast<int64_t>(num_bytes), "cuMemAddressReserve"));
  if (auto mapped = map(address, num_bytes, memory, device); !mapped.ok()) {
    driver.free_addresses(address, num_bytes);
    return mapped.error();
  }
  return address;
}

}  // namespace

Result<ExportedMemory::Block> ExportedMemory::allocate(int64_t num_bytes) {
  const Driver& driver = the_driver();
  if (!driver.complete)
    return Error(Errc::kUnsupported, "the driver maps no memory by descriptors");
  const auto properties = properties_of(device_);
  size_t unit = 0;
  MR_RETURN_IF_ERROR(
      check(driver.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), num_bytes,
            "cuMemGetAllocationGranularity"));
  Allocation made{.memory = 0,
                  .num_bytes = static_cast<size_t>(round_up(num_bytes, static_cast<int64_t>(unit))),
                  .descriptor = {}};
  CUmemGenericAllocationHandle memory = 0;
  MR_RETURN_IF_ERROR(
      check(driver.create(&memory, made.num_bytes, &properties, 0), num_bytes, "cuMemCreate"));
  made.memory = memory;
  int descriptor = -1;
  auto exported = check(driver.export_handle(&descriptor, memory, kHandleType, 0), num_bytes,
                        "cuMemExportToShareableHandle");
  made.descriptor = FileDescriptor(descriptor);
  auto address = exported.ok() ? map_anywhere(made.num_bytes, memory, device_)
                               : Result<CUdeviceptr>(exported.error());
  if (!address.ok()) {
    driver.release(memory);
    return address.error();
  }
  auto* const data = reinterpret_cast<void*>(*address);
  const Block block{.data = data,
                    .descriptor = made.descriptor.get(),
                    .num_bytes = static_cast<int64_t>(made.num_bytes)};
  allocations_.emplace(data, std::move(made));
  return block;
}

bool ExportedMemory::free(void* data) noexcept {
  const auto known = allocations_.find(data);
  if (known == allocations_.end()) return false;
  const Driver& driver = the_driver();
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  cudaDeviceSynchronize();
  driver.unmap(address, known->second.num_bytes);
  driver.free_addresses(address, known->second.num_bytes);
  driver.release(known->second.memory);
  allocations_.erase(known);
  return true;
}

}  // namespace millrace::kernels::cuda
