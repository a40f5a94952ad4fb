// SPDX-License-Identifier: Apache-2.0
// Spans as the body of a POST to /v1/traces: OTLP's ExportTraceServiceRequest in JSON
// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding). Pure.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "common/tracing/span.h"

namespace millrace::tracing {

// Who sends spans.
struct OtlpSender {
  std::string service;   // "millrace-coordinator"
  std::string instance;  // which of several
  std::string version;
};

// Spans are timed by the steady clock; `steady` and `wall` are one moment by either clock.
struct ClockPair {
  static ClockPair now();

  TimePoint steady;
  std::chrono::system_clock::time_point wall;
};

std::string otlp_json(std::span<const Span> spans, const OtlpSender& sender,
                      const ClockPair& clocks);

// How many spans a receiver says that it did not take, in its answer to such a request; 0 if it
// says nothing.
int64_t rejected_spans(std::string_view answer);

}  // namespace millrace::tracing
