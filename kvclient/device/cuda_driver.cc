// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device/cuda_driver.h"

#include <dlfcn.h>

namespace millrace::kvclient {

namespace {

Result<CudaDriver> load() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return error(Errc::kUnsupported, "no CUDA driver: {}", ::dlerror());
  CudaDriver driver{};
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find(driver.init, "cuInit");
  find(driver.device_get, "cuDeviceGet");
  find(driver.retain_primary_context, "cuDevicePrimaryCtxRetain");
  find(driver.release_primary_context, "cuDevicePrimaryCtxRelease_v2");
  find(driver.push_context, "cuCtxPushCurrent_v2");
  find(driver.pop_context, "cuCtxPopCurrent_v2");
  find(driver.load_module, "cuModuleLoadData");
  find(driver.unload_module, "cuModuleUnload");
  find(driver.get_function, "cuModuleGetFunction");
  find(driver.create_stream, "cuStreamCreate");
  find(driver.destroy_stream, "cuStreamDestroy_v2");
  find(driver.synchronize, "cuStreamSynchronize");
  find(driver.allocate, "cuMemAlloc_v2");
  find(driver.free, "cuMemFree_v2");
  find(driver.allocate_host, "cuMemHostAlloc");
  find(driver.free_host, "cuMemFreeHost");
  find(driver.copy_to_device, "cuMemcpyHtoDAsync_v2");
  find(driver.copy_to_host, "cuMemcpyDtoH_v2");
  find(driver.launch, "cuLaunchKernel");
  find(driver.import_memory, "cuMemImportFromShareableHandle");
  find(driver.release_memory, "cuMemRelease");
  find(driver.reserve_addresses, "cuMemAddressReserve");
  find(driver.free_addresses, "cuMemAddressFree");
  find(driver.map_memory, "cuMemMap");
  find(driver.unmap_memory, "cuMemUnmap");
  find(driver.set_access, "cuMemSetAccess");
  find(driver.error_name, "cuGetErrorName");
  if (!missing.empty()) {
    return error(Errc::kUnsupported, "the CUDA driver has no {}", missing);
  }
  if (const auto status = driver.init(0); status != 0) {
    return error(Errc::kUnsupported, "{}",
                 driver.check(status, "starting the CUDA driver").error().message);
  }
  return driver;
}

}  // namespace

Result<const CudaDriver*> CudaDriver::get() {
  static const Result<CudaDriver> driver = load();
  if (!driver.ok()) return driver.error();
  return &*driver;
}

Result<void> CudaDriver::check(Status status, const char* what) const {
  if (status == 0) return {};
  const char* name = nullptr;
  error_name(status, &name);
  return error(Errc::kInternal, "{}: {}", what, name == nullptr ? "an unknown error" : name);
}

}  // namespace millrace::kvclient
