// SPDX-License-Identifier: Apache-2.0
// Sends spans to an OpenTelemetry collector, by OTLP over HTTP in JSON, from a thread of its own.
// Nobody waits for it: add() puts spans into a bounded queue, and what does not fit is dropped and
// counted, the newest first. A batch that could not be sent is sent again, less and less often. Owned
// by a program's server; its metrics need a registry that outlives it. The destructor sends what is
// left, for a second at most (and as long as the system takes to find the host's address).
//
//   OtlpExporter exporter({.endpoint = endpoint, .sender = {.service = "millrace-coordinator"}},
//                         registry);
//   exporter.add(std::move(spans));
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/metrics/registry.h"
#include "common/net/tls_context.h"
#include "common/tracing/otlp_endpoint.h"
#include "common/tracing/otlp_json.h"
#include "common/tracing/span.h"

namespace millrace::tracing {

struct OtlpSettings {
  OtlpEndpoint endpoint;
  TlsContext tls;  // for an endpoint that encrypts
  OtlpSender sender;
  int64_t max_queued_spans = 4096;
  int64_t batch_spans = 256;
  Duration batch_time = std::chrono::seconds(1);   // how long a span waits for others
  Duration timeout = std::chrono::seconds(10);     // of a request
  Duration first_pause = std::chrono::seconds(1);  // after a failure, doubled up to the longest
  Duration longest_pause = std::chrono::seconds(30);
  Duration last_time = std::chrono::seconds(1);  // for what is left at the end
};

class OtlpExporter {
 public:
  OtlpExporter(OtlpSettings settings, metrics::Registry& registry);
  ~OtlpExporter();
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  // All of them or none, so that a trace has no holes. Thread-safe.
  void add(std::vector<Span> spans) noexcept;

 private:
  class Sending;
  std::unique_ptr<Sending> sending_;
};

}  // namespace millrace::tracing
