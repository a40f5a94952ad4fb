// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/host_memory_device.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "common/system/available_memory.h"
#include "common/units.h"

namespace millrace::kernels {
namespace {

constexpr int64_t kAlignmentBytes = 64;  // a cache line, and the widest vector

int64_t physical_memory_bytes() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

}  // namespace

int64_t HostMemoryDevice::free_bytes() const {
  return available_memory_bytes();
}

Result<DeviceBuffer> HostMemoryDevice::allocate(int64_t bytes) {
  MR_ASSIGN_OR_RETURN(void* data, allocate_bytes(bytes));
  return DeviceBuffer(this, data, bytes);
}

Result<HostBuffer> HostMemoryDevice::allocate_host(int64_t bytes) {
  MR_ASSIGN_OR_RETURN(void* data, allocate_bytes(bytes));
  return HostBuffer(this, data, bytes);
}

Result<void*> HostMemoryDevice::allocate_bytes(int64_t bytes) const {
  MR_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
  // The kernel overcommits: what is larger than the machine would only fail when touched, and then
  // by a signal.
  const int64_t limit = physical_memory_bytes();
  if (bytes > limit) {
    return error(Errc::kExhausted, "{}: {} requested, the machine has {}", info().name,
                 format_bytes(bytes), format_bytes(limit));
  }
  if (bytes == 0) return nullptr;
  void* data = std::aligned_alloc(kAlignmentBytes, round_up(bytes, kAlignmentBytes));
  if (data == nullptr) {
    return error(Errc::kExhausted, "{}: cannot allocate {}", info().name, format_bytes(bytes));
  }
  return data;
}

void HostMemoryDevice::free(void* data, int64_t) noexcept {
  std::free(data);
}

void HostMemoryDevice::free_host(void* data) noexcept {
  std::free(data);
}

void HostMemoryDevice::copy(void* destination, const void* source, int64_t bytes) {
  if (bytes > 0) std::memcpy(destination, source, static_cast<size_t>(bytes));
}

TimeMark HostMemoryDevice::mark() {
  return host_time_mark();
}

double HostMemoryDevice::elapsed_s(TimeMark from, TimeMark to) const {
  return host_elapsed_s(from, to);
}

}  // namespace millrace::kernels
