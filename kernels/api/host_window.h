// The host's view of pieces of device memory, for what works on host memory: collectives, files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::kernels {

// On a device whose memory is the host's, the view is that memory itself and nothing is copied.
// Otherwise it is one piece of page-locked memory, so only one view is alive at a time: it ends
// with the next call of read() or fill().
class HostWindow {
 public:
  // For views of at most `max_bytes`.
  static Result<HostWindow> create(Device& device, int64_t max_bytes);

  int64_t max_bytes() const { return max_bytes_; }

  // What the `bytes` at `data` hold once all operations called so far are done; waits for them.
  Result<std::span<std::byte>> read(const void* data, int64_t bytes, Deadline deadline);
  // Room for new contents of the `bytes` at `data`; what it holds is undefined. Waits as read().
  Result<std::span<std::byte>> fill(void* data, int64_t bytes, Deadline deadline);
  // Brings the view of `data`, changed or filled, to the device, before any operation called after.
  void write(void* data, int64_t bytes);

 private:
  HostWindow(Device& device, int64_t max_bytes) : device_(&device), max_bytes_(max_bytes) {}

  bool direct() const { return staging_.bytes() == 0; }

  Device* device_;
  int64_t max_bytes_;
  HostBuffer staging_;  // empty where the view is the memory itself
};

}  // namespace millrace::kernels
