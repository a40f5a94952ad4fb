// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/host_window.h"

#include "common/check.h"

namespace millrace::kernels {

Result<HostWindow> HostWindow::create(DeviceMemory& device, int64_t max_bytes) {
  HostWindow window(device, max_bytes);
  if (!device.info().host_memory) {
    MR_ASSIGN_OR_RETURN(window.staging_, device.allocate_host(max_bytes));
  }
  return window;
}

Result<std::span<std::byte>> HostWindow::read(const void* data, int64_t bytes, Deadline deadline) {
  MR_CHECK(bytes <= max_bytes_, "a view of {} bytes, at most {}", bytes, max_bytes_);
  if (!direct()) device_->copy(staging_.as<void>(), data, bytes);
  return fill(const_cast<void*>(data), bytes, deadline);
}

Result<std::span<std::byte>> HostWindow::fill(void* data, int64_t bytes, Deadline deadline) {
  MR_CHECK(bytes <= max_bytes_, "a view of {} bytes, at most {}", bytes, max_bytes_);
  MR_RETURN_IF_ERROR(device_->synchronize(deadline));
  auto* view = direct() ? static_cast<std::byte*>(data) : staging_.as<std::byte>();
  return std::span(view, static_cast<size_t>(bytes));
}

void HostWindow::write(void* data, int64_t bytes) {
  MR_CHECK(bytes <= max_bytes_, "a view of {} bytes, at most {}", bytes, max_bytes_);
  if (!direct()) device_->copy(data, staging_.as<void>(), bytes);
}

}  // namespace millrace::kernels
