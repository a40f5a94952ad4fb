// SPDX-License-Identifier: Apache-2.0
// How long a call takes on a device.
#pragma once

#include <functional>

#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::bench {

struct TimingOptions {
  int num_samples = 5;
  double sample_s = 0.05;  // calls are repeated until a sample takes this long
};

struct Timing {
  double median_ms = 0;
  double min_ms = 0;
  double max_ms = 0;
  int calls_a_sample = 0;
};

// Milliseconds a call on the device's own clock. Calls run back to back, so that launch costs show
// only where they exceed the work. The first call warms up and is not counted.
Result<Timing> time_calls(kernels::Device& device, const std::function<void()>& call,
                          const TimingOptions& options);

}  // namespace millrace::bench
