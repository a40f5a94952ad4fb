// SPDX-License-Identifier: Apache-2.0
// One operation of a trace: what it was, when, and a part of which. A value.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"

namespace millrace::tracing {

struct Attribute {
  bool operator==(const Attribute&) const = default;

  std::string name;
  std::variant<std::string, bool, int64_t, double> value;
};
using Attributes = std::vector<Attribute>;

struct SpanEvent {
  std::string name;
  TimePoint at;
  Attributes attributes;
};

struct Span {
  // Numbered as in OTLP.
  enum class Kind { kInternal = 1, kServer = 2, kClient = 3 };

  std::string trace_id;
  std::string span_id;
  std::string parent_id;  // "" : none, it is the trace's first
  std::string name;
  Kind kind = Kind::kInternal;
  TimePoint begin;
  TimePoint end;
  Attributes attributes;
  std::vector<SpanEvent> events;
  bool failed = false;
  // Who did it, if not this process: the names of a service and of one instance of it.
  std::string service;
  std::string instance;
};

}  // namespace millrace::tracing
