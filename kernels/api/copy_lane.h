// SPDX-License-Identifier: Apache-2.0
// A second stream of a device, for copies between device and host memory that run concurrently with
// the device's operations.
//
//   device thread                          another thread
//   ... operations that fill `pages` ...
//   lane->follow();
//   (hands over) ------------------------> lane->copy_rows(pages to host);
//   ... operations on other memory ...     lane->synchronize(deadline);
//   (waits) <------------------------------ (signals)
//   ... operations that refill `pages` ...
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "common/clock.h"
#include "common/result.h"
#include "kernels/api/copy_rows.h"
#include "kernels/api/gather_pages.h"
#include "kernels/api/scatter_pages.h"

namespace millrace::kernels {

// Used by one thread at a time, which need not be the device's. Must be destroyed before its device.
class CopyLane {
 public:
  virtual ~CopyLane() = default;

  // Copies issued from here on run after all operations that the device has been given so far. Must be
  // called on a thread that may call the device at that moment.
  virtual void follow() = 0;
  // As Device::copy_rows, in the lane's order.
  virtual void copy_rows(const CopyRowsParams& params) = 0;
  // Whether gather_pages() may read this host memory: Device::lock_host has locked it. Memory of the device
  // may always be gathered.
  virtual bool reaches(std::span<const std::byte> bytes) const = 0;
  // In the lane's order, straight from where the pages are. The previous gather must have completed.
  virtual void gather_pages(const GatherPagesParams& params) = 0;
  // In the lane's order, from rows in memory of the device to pages there.
  virtual void scatter_pages(const ScatterPagesParams& params) = 0;
  virtual Result<void> synchronize(Deadline deadline) = 0;
  // After synchronize(): a page of the last gather that does not match its checksum, if there is one.
  virtual std::optional<int64_t> damaged_page() const = 0;
};

// The lane of a device whose memory is the host's: copies are done when the call returns.
class HostCopyLane final : public CopyLane {
 public:
  void follow() override {}
  void copy_rows(const CopyRowsParams& params) override { copy_host_rows(params); }
  bool reaches(std::span<const std::byte>) const override { return false; }
  void gather_pages(const GatherPagesParams& params) override {
    damaged_page_ = gather_host_pages(params);
  }
  void scatter_pages(const ScatterPagesParams& params) override { scatter_host_pages(params); }
  Result<void> synchronize(Deadline) override { return {}; }
  std::optional<int64_t> damaged_page() const override { return damaged_page_; }

 private:
  std::optional<int64_t> damaged_page_;
};

}  // namespace millrace::kernels
