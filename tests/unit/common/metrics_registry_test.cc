// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/registry.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace millrace::metrics {
namespace {

bool has_line(const std::string& text, const std::string& wanted) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == wanted) return true;
  }
  return false;
}

TEST(MetricsRegistry, ShowsTheValuesOfMetrics) {
  Registry registry;
  registry.counter("millrace_failures_total", "Failures", {{"reason", "io"}}).add(2);
  registry.gauge("millrace_pool_bytes", "Pool").set(1024);
  auto latency = registry.histogram("millrace_wait_seconds", "Waiting", {0.1, 1});
  latency.observe(0.5);
  const std::string text = registry.text();
  EXPECT_TRUE(has_line(text, "millrace_failures_total{reason=\"io\"} 2")) << text;
  EXPECT_TRUE(has_line(text, "millrace_pool_bytes 1024")) << text;
  EXPECT_TRUE(has_line(text, "millrace_wait_seconds_bucket{le=\"0.1\"} 0")) << text;
  EXPECT_TRUE(has_line(text, "millrace_wait_seconds_bucket{le=\"1\"} 1")) << text;
  EXPECT_TRUE(has_line(text, "millrace_wait_seconds_sum 0.5")) << text;
}

TEST(MetricsRegistry, GivesTheSameMetricForTheSameNameAndLabels) {
  Registry registry;
  registry.counter("millrace_a_total", "A").add();
  registry.counter("millrace_a_total", "A").add();
  EXPECT_TRUE(has_line(registry.text(), "millrace_a_total 2"));
}

TEST(MetricsRegistry, RepublishesASourceUnderItsLabelAndForgetsItWhenRetracted) {
  Registry registry;
  EXPECT_EQ(registry.publish("group", "g", {{"millrace_pool_bytes", "Pool", false, {}, 5}}), 0);
  EXPECT_TRUE(has_line(registry.text(), "millrace_pool_bytes{group=\"g\"} 5"));
  EXPECT_EQ(registry.publish("group", "g", {{"millrace_pool_bytes", "Pool", false, {}, 6}}), 0);
  EXPECT_TRUE(has_line(registry.text(), "millrace_pool_bytes{group=\"g\"} 6"));
  registry.retract("g");
  EXPECT_EQ(registry.text().find("millrace_pool_bytes"), std::string::npos);
}

TEST(MetricsRegistry, LeavesOutForeignSamplesThatBreakTheRules) {
  Registry registry;
  registry.gauge("millrace_queued_requests", "Queue").set(1);
  const int refused =
      registry.publish("group", "g",
                       {{"other_bytes", "prefix", false, {}, 1},
                        {"millrace_oops", "no unit", false, {}, 1},
                        {"millrace_x_total", "a gauge named like a counter", false, {}, 1},
                        {"millrace_queued_requests", "our own", false, {}, 1},
                        {"millrace_ok_bytes", "label", false, {{"bad label", "x"}}, 1},
                        {"millrace_ok_bytes", "fine", false, {}, 1},
                        {"millrace_ok_bytes", "the same series again", false, {}, 2}});
  EXPECT_EQ(refused, 6);
  EXPECT_TRUE(has_line(registry.text(), "millrace_ok_bytes{group=\"g\"} 1"));
}

TEST(MetricsRegistry, ShowsOneFamilyForANameOfManySources) {
  Registry registry;
  registry.publish("group", "a", {{"millrace_pool_bytes", "Pool", false, {}, 1}});
  registry.publish("group", "b", {{"millrace_pool_bytes", "Pool", false, {}, 2}});
  const std::string text = registry.text();
  const size_t first = text.find("# TYPE millrace_pool_bytes gauge");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find("# TYPE millrace_pool_bytes", first + 1), std::string::npos);
}

TEST(MetricsRegistry, GivesItsOwnMetricsAsSamples) {
  Registry registry;
  registry.counter("millrace_sent_bytes_total", "Sent", {{"transport", "tcp"}}).add(7);
  registry.histogram("millrace_wait_seconds", "Waiting", {1}).observe(0.25);
  std::set<std::string> seen;
  for (const Sample& sample : registry.samples()) {
    EXPECT_TRUE(check_sample(sample).ok()) << sample.name;
    seen.insert(fmt::format("{} {}", sample.name, sample.value));
  }
  EXPECT_EQ(seen, (std::set<std::string>{"millrace_sent_bytes_total 7",
                                         "millrace_wait_seconds_observations_total 1",
                                         "millrace_wait_seconds_sum_total 0.25"}));
}

TEST(MetricsRegistry, AbortsOnANameThatBreaksTheRules) {
  Registry registry;
  EXPECT_DEATH(registry.gauge("pool_bytes", "no prefix"), "check failed");
  EXPECT_DEATH(registry.counter("millrace_pool_bytes", "no _total"), "_total");
}

}  // namespace
}  // namespace millrace::metrics
