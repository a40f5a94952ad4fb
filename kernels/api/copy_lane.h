// A second order of execution on a device: copies between device and host memory that run beside
// the device's operations.
//
//   device thread                          another thread
//   ... operations that fill `pages` ...
//   lane->follow();
//   (hands over) ------------------------> lane->copy_rows(pages to host);
//   ... operations that leave `pages` ...  lane->synchronize(deadline);
//   (waits) <------------------------------ (says so)
//   ... operations that refill `pages` ...
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "kernels/api/copy_rows.h"

namespace millrace::kernels {

// One thread at a time, which need not be the device's. Ends before its device.
class CopyLane {
 public:
  virtual ~CopyLane() = default;

  // Copies from here on come after all operations that the device has been given so far. Called
  // where the device may be called.
  virtual void follow() = 0;
  // As Device::copy_rows, in the lane's order.
  virtual void copy_rows(const CopyRowsParams& params) = 0;
  virtual Result<void> synchronize(Deadline deadline) = 0;
};

// The lane of a device whose memory is the host's: copies are done when the call returns.
class HostCopyLane final : public CopyLane {
 public:
  void follow() override {}
  void copy_rows(const CopyRowsParams& params) override { copy_host_rows(params); }
  Result<void> synchronize(Deadline) override { return {}; }
};

}  // namespace millrace::kernels
