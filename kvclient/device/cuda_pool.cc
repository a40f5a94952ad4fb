// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device/cuda_pool.h"

namespace millrace::kvclient {

namespace {

constexpr int kPosixDescriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int kOfDevice = 1;         // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int kMayRead = 1;          // CU_MEM_ACCESS_FLAGS_PROT_READ

}  // namespace

Result<std::shared_ptr<const CudaPool>> CudaPool::map(const CudaDriver& driver, int device,
                                                      int descriptor, int64_t bytes) {
  std::shared_ptr<CudaPool> pool(new CudaPool(driver, bytes));
  if (auto imported = pool->import(device, descriptor); !imported.ok()) {
    return Error(Errc::kUnsupported, imported.error().message);
  }
  return std::shared_ptr<const CudaPool>(std::move(pool));
}

Result<void> CudaPool::import(int device, int descriptor) {
  // The driver takes the descriptor in the form of a pointer, and does not take ownership of it.
  auto* const handle = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  MR_RETURN_IF_ERROR(driver_.check(driver_.import_memory(&memory_, handle, kPosixDescriptor),
                                   "importing memory of another process"));
  imported_ = true;
  MR_RETURN_IF_ERROR(
      driver_.check(driver_.reserve_addresses(&address_, size(), 0, 0, 0), "reserving addresses"));
  MR_RETURN_IF_ERROR(driver_.check(driver_.map_memory(address_, size(), 0, memory_, 0),
                                   "mapping memory of another process"));
  mapped_ = true;
  const CudaDriver::MemoryAccess access{
      .location_type = kOfDevice, .location_id = device, .flags = kMayRead};
  return driver_.check(driver_.set_access(address_, size(), &access, 1),
                       "reaching memory of another process");
}

CudaPool::~CudaPool() {
  if (mapped_) driver_.unmap_memory(address_, size());
  if (address_ != 0) driver_.free_addresses(address_, size());
  if (imported_) driver_.release_memory(memory_);
}

}  // namespace millrace::kvclient
