// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

namespace millrace::metrics {
namespace {

double value_of(const Registry& registry, const std::string& name) {
  const auto samples = registry.samples();
  const auto found = std::find_if(samples.begin(), samples.end(),
                                  [&](const Sample& sample) { return sample.name == name; });
  EXPECT_NE(found, samples.end()) << name;
  return found == samples.end() ? -1 : found->value;
}

TEST(ProcessMetrics, AreThoseOfThisProcess) {
  Registry registry;
  ProcessMetrics process(registry);
  process.update();
  const double descriptors = value_of(registry, "millrace_process_open_descriptors");
  const double cpu_seconds = value_of(registry, "millrace_process_cpu_seconds_total");
  EXPECT_GT(descriptors, 0);
  EXPECT_GT(cpu_seconds, 0);
  EXPECT_GT(value_of(registry, "millrace_process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(value_of(registry, "millrace_process_start_time_seconds"), 1.7e9);
  const int opened = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  process.update();
  EXPECT_EQ(value_of(registry, "millrace_process_open_descriptors"), descriptors + 1);
  EXPECT_GT(value_of(registry, "millrace_process_cpu_seconds_total"), cpu_seconds);
  ::close(opened);
}

}  // namespace
}  // namespace millrace::metrics
