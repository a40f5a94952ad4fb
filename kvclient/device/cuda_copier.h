// Brings pages to the memory of an NVIDIA GPU: what a request brought crosses the bus in one copy,
// with a list of its pieces behind it, and a kernel on the GPU writes them where they belong. So the
// layout of an engine's blocks does not decide how fast the bus is. Each lane has pinned memory, as
// much on the GPU, and a stream of its own, which waits for no other stream and holds none up.
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

 private:
  // Of one GPU: the process' primary context, which an engine's CUDA runtime uses too.
  struct Gpu {
    int device = 0;
    void* context = nullptr;
    void* module = nullptr;
    void* scatter = nullptr;
  };
  class Lane;
  static Result<void> prepare(const CudaDriver& driver, Gpu& gpu);

  std::mutex mutex_;
  std::map<int32_t, Gpu> gpus_;  // by ordinal
};

}  // namespace millrace::kvclient
