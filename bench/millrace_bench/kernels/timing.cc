// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/timing.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace millrace::bench {

namespace {

// Longer than any benchmarked call takes on a working device.
constexpr auto kTimeout = std::chrono::minutes(30);
constexpr int kMaxCalls = 10000;

Result<double> sample_s(kernels::Device& device, const std::function<void()>& call, int num_calls) {
  const auto from = device.mark();
  for (int i = 0; i < num_calls; ++i) call();
  const auto to = device.mark();
  MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kTimeout)));
  return device.elapsed_s(from, to);
}

}  // namespace

Result<Timing> time_calls(kernels::Device& device, const std::function<void()>& call,
                          const TimingOptions& options) {
  call();
  MR_ASSIGN_OR_RETURN(const double once_s, sample_s(device, call, 1));
  Timing timing;
  timing.calls_a_sample = static_cast<int>(
      std::clamp(std::ceil(options.sample_s / std::max(once_s, 1e-7)), 1.0, double{kMaxCalls}));
  std::vector<double> samples_ms;
  for (int i = 0; i < options.num_samples; ++i) {
    MR_ASSIGN_OR_RETURN(const double all_s, sample_s(device, call, timing.calls_a_sample));
    samples_ms.push_back(1e3 * all_s / timing.calls_a_sample);
  }
  std::sort(samples_ms.begin(), samples_ms.end());
  timing.median_ms = samples_ms[samples_ms.size() / 2];
  timing.min_ms = samples_ms.front();
  timing.max_ms = samples_ms.back();
  return timing;
}

}  // namespace millrace::bench
