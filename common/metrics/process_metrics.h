// SPDX-License-Identifier: Apache-2.0
// What the operating system knows of this process, in addition to what it measures itself.
#pragma once

#include <cstdint>

#include "common/metrics/registry.h"

namespace millrace::metrics {

class ProcessMetrics {
 public:
  // Construct early in the life of a process: its start time is now.
  explicit ProcessMetrics(Registry& registry);

  // Call before the registry is rendered.
  void update();

 private:
  Counter cpu_seconds_;
  Counter log_lines_left_out_;
  Gauge resident_bytes_;
  Gauge open_descriptors_;
  double cpu_counted_s_ = 0;
  int64_t lines_counted_ = 0;
};

}  // namespace millrace::metrics
