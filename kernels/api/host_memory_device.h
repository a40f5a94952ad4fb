// SPDX-License-Identifier: Apache-2.0
// Base class of devices whose memory is host memory and whose calls return when their work is done. It
// implements everything except the name and the operations.
#pragma once

#include <memory>

#include "kernels/api/device.h"

namespace millrace::kernels {

class HostMemoryDevice : public Device {
 public:
  int64_t free_bytes() const override;
  Result<DeviceBuffer> allocate(int64_t bytes) override;
  Result<HostBuffer> allocate_host(int64_t bytes) override;

  void copy(void* destination, const void* source, int64_t bytes) override;
  void copy_rows(const CopyRowsParams& params) override { copy_host_rows(params); }
  void copy_pieces(const CopyPiecesParams& params) override { copy_host_pieces(params); }
  std::unique_ptr<CopyLane> make_copy_lane() override { return std::make_unique<HostCopyLane>(); }

  Result<void> synchronize(Deadline) override { return {}; }
  TimeMark mark() override;
  Result<void> wait_for(TimeMark, Deadline) override { return {}; }
  double elapsed_s(TimeMark from, TimeMark to) const override;

  void build_closed_form(const ClosedFormParams& params) override { write_closed_forms(params); }

 private:
  Result<void*> allocate_bytes(int64_t bytes) const;
  void free(void* data, int64_t bytes) noexcept override;
  void free_host(void* data) noexcept override;
};

}  // namespace millrace::kernels
