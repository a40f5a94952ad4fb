// SPDX-License-Identifier: Apache-2.0
// Where an operation stands in a trace that goes through several processes, as the header
// `traceparent` says it (https://www.w3.org/TR/trace-context/). Pure, but for the random ids.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace::tracing {

struct TraceContext {
  bool operator==(const TraceContext&) const = default;

  std::string trace_id;  // 32 lower-case hexadecimal digits, not all 0
  std::string span_id;   // 16: of the operation that what follows is a part of
  bool sampled = false;  // whether it is recorded
};

// nullopt for what the specification says to ignore. A version from the future counts by the fields
// that it shares with this one.
std::optional<TraceContext> parse_traceparent(std::string_view text);
std::string format_traceparent(const TraceContext& context);

std::string make_trace_id();
std::string make_span_id();

// Whether a trace that begins here belongs to that share of all. The same in every process, by the
// random last 56 bits of its id.
bool is_in_share(std::string_view trace_id, double share);

}  // namespace millrace::tracing
