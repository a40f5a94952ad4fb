#include "tests/support/far_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "common/check.h"
#include "common/units.h"

namespace millrace::test {

using kernels::CopyRowsParams;

// Copies at once, into memory nobody may read before synchronize() and out of memory the device's
// thread has left alone since follow().
class FarDevice::Lane final : public kernels::CopyLane {
 public:
  explicit Lane(FarDevice& device) : device_(device) {}
  void follow() override {
    const std::lock_guard lock(device_.mutex_);
    device_.deliver_to_device();
  }
  void copy_rows(const CopyRowsParams& params) override {
    const std::lock_guard lock(device_.mutex_);
    device_.set_access(true);
    kernels::copy_host_rows(params);
    device_.set_access(false);
  }
  Result<void> synchronize(Deadline) override { return {}; }

 private:
  FarDevice& device_;
};

std::unique_ptr<kernels::CopyLane> FarDevice::make_copy_lane() {
  return std::make_unique<Lane>(*this);
}

FarDevice::~FarDevice() {
  MR_CHECK(memory_.empty(), "{} buffers outlive the device", memory_.size());
}

kernels::DeviceInfo FarDevice::info() const {
  auto info = device_->info();
  info.name = "far " + info.name;
  info.host_memory = false;
  return info;
}

Result<kernels::DeviceBuffer> FarDevice::allocate(int64_t bytes) {
  if (bytes == 0) return kernels::DeviceBuffer(this, nullptr, 0);
  const int64_t mapped = round_up(bytes, int64_t{sysconf(_SC_PAGESIZE)});
  void* data =
      mmap(nullptr, static_cast<size_t>(mapped), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MR_CHECK(data != MAP_FAILED, "no {} bytes", mapped);
  const std::lock_guard lock(mutex_);
  memory_.emplace(static_cast<std::byte*>(data), mapped);
  allocated_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, allocated_bytes_);
  return kernels::DeviceBuffer(this, data, bytes);
}

void FarDevice::free(void* data, int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto known = memory_.find(static_cast<std::byte*>(data));
  munmap(data, static_cast<size_t>(known->second));
  memory_.erase(known);
  allocated_bytes_ -= bytes;
}

Result<kernels::HostBuffer> FarDevice::allocate_host(int64_t bytes) {
  if (bytes == 0) return kernels::HostBuffer(this, nullptr, 0);
  return kernels::HostBuffer(this, std::malloc(static_cast<size_t>(bytes)), bytes);
}

void FarDevice::free_host(void* data) noexcept {
  std::free(data);
}

bool FarDevice::is_device_memory(const void* pointer) const {
  const auto* at = static_cast<const std::byte*>(pointer);
  for (const auto& [start, bytes] : memory_) {
    if (at >= start && at < start + bytes) return true;
  }
  return false;
}

void FarDevice::set_access(bool allowed) const {
  for (const auto& [start, bytes] : memory_) {
    MR_CHECK(mprotect(start, static_cast<size_t>(bytes),
                      allowed ? PROT_READ | PROT_WRITE : PROT_NONE) == 0,
             "mprotect of {} bytes", bytes);
  }
}

void FarDevice::copy(void* destination, const void* source, int64_t bytes) {
  copy_rows({.destination = destination, .source = source, .row_bytes = bytes, .num_rows = 1});
}

// To the device: read from the host as late as allowed. To the host: taken now, since later
// operations may overwrite it, and delivered when the host waits.
void FarDevice::copy_rows(const CopyRowsParams& params) {
  if (params.row_bytes == 0 || params.num_rows == 0) return;
  const std::lock_guard lock(mutex_);
  if (is_device_memory(params.destination)) {
    on_the_way_.push_back(params);
    return;
  }
  deliver_to_device();
  Arrival arrival{
      .rows = params,
      .data = std::vector<std::byte>(static_cast<size_t>(params.row_bytes * params.num_rows))};
  set_access(true);
  kernels::copy_host_rows({.destination = arrival.data.data(),
                           .destination_stride_bytes = params.row_bytes,
                           .source = params.source,
                           .source_stride_bytes = params.source_stride_bytes,
                           .row_bytes = params.row_bytes,
                           .num_rows = params.num_rows});
  set_access(false);
  arrivals_.push_back(std::move(arrival));
}

void FarDevice::deliver_to_device() {
  if (on_the_way_.empty()) return;
  set_access(true);
  for (const CopyRowsParams& copy : on_the_way_) kernels::copy_host_rows(copy);
  set_access(false);
  on_the_way_.clear();
}

Result<void> FarDevice::synchronize(Deadline) {
  const std::lock_guard lock(mutex_);
  deliver_to_device();
  for (Arrival& arrival : arrivals_) {
    arrival.rows.source = arrival.data.data();
    arrival.rows.source_stride_bytes = arrival.rows.row_bytes;
    kernels::copy_host_rows(arrival.rows);
  }
  arrivals_.clear();
  return {};
}

}  // namespace millrace::test
