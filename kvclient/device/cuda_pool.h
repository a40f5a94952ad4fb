// SPDX-License-Identifier: Apache-2.0
// A rank's pool in the memory of an NVIDIA GPU, mapped by its descriptor
// (cuMemExportToShareableHandle) so that a GPU of this process can read it: the same GPU, or one
// that reaches it over NVLink or the bus. The memory stays as long as any process has it mapped,
// whichever process allocated it.
#pragma once

#include <cstdint>
#include <memory>

#include "kvclient/device/cuda_driver.h"
#include "kvclient/device/device_copier.h"

namespace millrace::kvclient {

class CudaPool final : public DevicePool {
 public:
  // `device`: the driver's number; its context must be current. kUnsupported, with the driver's
  // reason.
  static Result<std::shared_ptr<const CudaPool>> map(const CudaDriver& driver, int device,
                                                     int descriptor, int64_t bytes);
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;
  ~CudaPool() override;

  CudaDriver::Address address() const { return address_; }

 private:
  CudaPool(const CudaDriver& driver, int64_t bytes) : DevicePool(bytes), driver_(driver) {}
  size_t size() const { return static_cast<size_t>(bytes()); }
  Result<void> import(int device, int descriptor);

  const CudaDriver& driver_;
  CudaDriver::MemoryHandle memory_ = 0;
  CudaDriver::Address address_ = 0;  // 0: none reserved
  bool imported_ = false;
  bool mapped_ = false;
};

}  // namespace millrace::kvclient
