// SPDX-License-Identifier: Apache-2.0
// Brings pages to the memory of an NVIDIA GPU. What a request fetched crosses the bus in one copy,
// with a list of its pieces behind it, and a kernel on the GPU writes the pieces where they belong.
// So the speed of the bus does not depend on the layout of an engine's blocks. Pages in a rank's
// pool on a GPU are read, checked and written by one kernel (gather.cu). Each lane has pinned
// memory, as much memory on the GPU, and a stream of its own, which neither waits for other streams
// nor holds them up.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "kvclient/device/cuda_driver.h"
#include "kvclient/device/device_copier.h"

namespace millrace::kvclient {

class CudaCopier final : public DeviceCopier {
 public:
  CudaCopier() = default;
  CudaCopier(const CudaCopier&) = delete;
  CudaCopier& operator=(const CudaCopier&) = delete;
  ~CudaCopier() override;

  Result<std::unique_ptr<DeviceLane>> open(int32_t device) override;
  Result<std::shared_ptr<const DevicePool>> map(int32_t device, int descriptor,
                                                int64_t bytes) override;

 private:
  // One GPU: the process' primary context, which an engine's CUDA runtime uses too.
  struct Gpu {
    int device = 0;
    void* context = nullptr;
    void* scatter_module = nullptr;
    void* gather_module = nullptr;
    void* scatter = nullptr;
    void* gather = nullptr;
  };
  class Lane;
  static Result<void> prepare(const CudaDriver& driver, Gpu& gpu);
  // With the mutex held.
  Result<const Gpu*> gpu(const CudaDriver& driver, int32_t device);

  std::mutex mutex_;
  std::map<int32_t, Gpu> gpus_;  // by ordinal
};

}  // namespace millrace::kvclient
