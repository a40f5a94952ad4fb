// SPDX-License-Identifier: Apache-2.0
// What the coordinator measures. Verbs are events; names and buckets are in coordinator_metrics.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/metrics/process_metrics.h"
#include "common/metrics/registry.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

class CoordinatorMetrics {
 public:
  explicit CoordinatorMetrics(metrics::Registry& registry);

  void refused(const Refusal& why);
  // A prompt was answered without a cache, for this reason, where others get the error.
  void declined(Errc why);
  void admitted(const Request& request);
  // A group gave the request back, and another may take it.
  void given_back(Errc why);
  // A request that the prefill of another answers.
  void joined();
  // A suspended prefill goes on.
  void resumed();
  void ended(const Request& request);
  // So many layers of the request's tokens were computed for nothing.
  void wasted(const Request& request, Errc why, size_t num_layers);
  // Prefills that wait or run without a client, those that are suspended, and results that are held.
  void unattended(int64_t prefills, int64_t suspended, int64_t results);
  void waiting(int64_t queued, int64_t running);
  void oldest_queued(double age_s);
  void groups(int connected);
  void group_lost();
  void active_leases(int64_t active);
  void lease_ended(LeaseState how);
  void http_connections(int64_t open);
  void http_answered(int status);
  // Republishes a group's own figures under its name.
  void heartbeat(const std::string& group_name, const protocol::Heartbeat& heartbeat);
  void group_gone(const std::string& group_name);

  std::string text();

 private:
  struct Times {
    Times(metrics::Registry& registry, const std::string& outcome);
    void observe(const Request& request);

    metrics::Histogram queue_seconds;
    metrics::Histogram prefill_seconds;  // of those that were started
  };

  metrics::Counter requests(const std::string& outcome, std::string_view reason);
  metrics::Counter requests_given_back(Errc why);
  metrics::Counter wasted_token_layers(Errc why);
  metrics::Counter requests_declined(Errc why);
  metrics::Counter leases_ended(LeaseState how);

  metrics::Registry& registry_;
  metrics::ProcessMetrics process_;
  metrics::Gauge queued_requests_;
  metrics::Gauge running_requests_;
  metrics::Gauge oldest_queued_seconds_;
  metrics::Gauge connected_groups_;
  metrics::Gauge unattended_prefills_;
  metrics::Gauge suspended_prefills_;
  metrics::Gauge held_results_;
  metrics::Counter joined_;
  metrics::Counter resumed_;
  metrics::Counter groups_lost_;
  metrics::Counter preemptions_;
  metrics::Counter side_by_side_;
  metrics::Gauge active_leases_;
  metrics::Gauge open_connections_;
  Times times_of_done_;
  Times times_of_failed_;
  metrics::Histogram prompt_tokens_;
  metrics::Histogram density_ratio_;
  metrics::Histogram recall_ratio_;
  metrics::Histogram recall_p01_ratio_;
  metrics::Counter foreseen_tokens_;
  metrics::Counter unfound_tokens_;
  metrics::Counter prefix_waits_;
  metrics::Counter samples_refused_;
};

}  // namespace millrace::coordinator
