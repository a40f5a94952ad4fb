// SPDX-License-Identifier: Apache-2.0
// After every metric has been used, /metrics must satisfy Prometheus' own lint.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "coordinator/requests/coordinator_metrics.h"

namespace millrace::coordinator {
namespace {

Request ended_request() {
  Request request;
  request.state = RequestState::kDone;
  request.started_at = request.ended_at = request.queued_at;
  auto result = std::make_shared<protocol::PrefillDone>();
  result->add_phases()->set_phase("attention");
  result->add_phases()->set_phase("made up");
  result->add_stages()->set_stage("tail");
  result->add_stages()->set_stage("made up");
  request.result = std::move(result);
  return request;
}

Request failed_request() {
  Request request;
  request.state = RequestState::kFailed;
  request.ended_at = request.queued_at + std::chrono::seconds(3);
  request.failure = Error(Errc::kCancelled, "x");
  return request;
}

std::string everything() {
  metrics::Registry registry;
  CoordinatorMetrics metrics(registry);
  const Request request = ended_request();
  metrics.refused(Error(Errc::kExhausted, "x"));
  metrics.admitted(request);
  metrics.given_back(Errc::kExhausted);
  metrics.declined(Errc::kExhausted);
  metrics.oldest_queued(1.5);
  metrics.ended(request);
  metrics.ended(failed_request());
  metrics.group_lost();
  metrics.lease_ended(LeaseState::kExpired);
  metrics.http_answered(200);
  protocol::Heartbeat heartbeat;
  auto& metric = *heartbeat.add_metrics();
  metric.set_name("millrace_transport_sent_bytes_total");
  metric.set_help("Bytes sent");
  metric.set_counter(true);
  (*metric.mutable_labels())["transport"] = "tcp";
  heartbeat.add_metrics()->set_name("not ours");
  metrics.heartbeat("group-0", heartbeat);
  return metrics.text();
}

// The family that a series belongs to; histograms have three suffixes.
std::string family_of(const std::string& series, const std::map<std::string, std::string>& types) {
  const std::string name = series.substr(0, series.find_first_of("{ "));
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string stem = name.substr(0, name.rfind('_'));
    const auto found = types.find(stem);
    if (found != types.end() && found->second == "histogram") return stem;
  }
  return name;
}

TEST(MetricsLint, EverySeriesHasHelpTypeAGoodNameAndIsThereOnce) {
  std::map<std::string, std::string> types;
  std::set<std::string> helped;
  std::set<std::string> series;
  std::istringstream lines(everything());
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, type;
    if (line.starts_with("# HELP ")) {
      words >> hash >> kind >> name;
      EXPECT_TRUE(helped.insert(name).second) << "HELP twice: " << name;
    } else if (line.starts_with("# TYPE ")) {
      words >> hash >> kind >> name >> type;
      EXPECT_TRUE(types.emplace(name, type).second) << "TYPE twice: " << name;
      EXPECT_TRUE(metrics::check_metric_name(name, type == "counter").ok()) << name;
    } else if (!line.empty()) {
      const std::string id = line.substr(0, line.rfind(' '));
      EXPECT_TRUE(series.insert(id).second) << "twice: " << id;
      const std::string family = family_of(line, types);
      EXPECT_EQ(types.count(family), 1u) << "no TYPE: " << line;
      EXPECT_EQ(helped.count(family), 1u) << "no HELP: " << line;
    }
  }
  EXPECT_GT(series.size(), 100u);
  EXPECT_EQ(types.count("millrace_transport_sent_bytes_total"), 1u);
  EXPECT_EQ(series.count("millrace_group_samples_refused_total"), 1u);
  EXPECT_EQ(series.count("millrace_prefill_stage_seconds_count{stage=\"tail\"}"), 1u);
  EXPECT_EQ(series.count("millrace_prefill_stage_seconds_count{stage=\"other\"}"), 1u);
}

TEST(MetricsLint, RequestsThatFailHaveTimesToo) {
  const std::string text = everything();
  for (const char* line : {"millrace_queue_seconds_sum{outcome=\"failed\"} 3\n",
                           "millrace_queue_seconds_count{outcome=\"done\"} 1\n",
                           "millrace_prefill_seconds_count{outcome=\"done\"} 1\n",
                           "millrace_prefill_seconds_count{outcome=\"failed\"} 0\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace millrace::coordinator
