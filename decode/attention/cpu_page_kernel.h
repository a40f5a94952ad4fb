// SPDX-License-Identifier: Apache-2.0
// PageKernel on a CPU: items run on threads, with vectors of the widest instruction set found at
// run time.
#pragma once

#include "decode/attention/page_kernel.h"

namespace millrace::decode {

class CpuPageKernel final : public PageKernel {
 public:
  explicit CpuPageKernel(int num_threads) : num_threads_(num_threads) {}

  void estimate(std::span<const EstimateItem> items) override;
  void attend(std::span<const AttendItem> items) override;

 private:
  const int num_threads_;
};

}  // namespace millrace::decode
