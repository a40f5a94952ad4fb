// SPDX-License-Identifier: Apache-2.0
#include "common/tracing/trace_context.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "common/secret.h"

namespace millrace::tracing {

namespace {

constexpr size_t kTraceIdChars = 32;
constexpr size_t kSpanIdChars = 16;
// version-trace_id-span_id-flags
constexpr size_t kTraceIdAt = 3;
constexpr size_t kSpanIdAt = kTraceIdAt + kTraceIdChars + 1;
constexpr size_t kFlagsAt = kSpanIdAt + kSpanIdChars + 1;
constexpr size_t kChars = kFlagsAt + 2;
constexpr unsigned kSampledFlag = 1;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_id(std::string_view text) {
  return is_hex(text) && std::ranges::any_of(text, [](char c) { return c != '0'; });
}

uint64_t from_hex(std::string_view digits) {
  uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view text) {
  if (text.size() < kChars || text[kTraceIdAt - 1] != '-' || text[kSpanIdAt - 1] != '-' ||
      text[kFlagsAt - 1] != '-') {
    return std::nullopt;
  }
  const std::string_view version = text.substr(0, 2);
  if (!is_hex(version) || version == "ff") return std::nullopt;
  const bool has_more = text.size() > kChars;
  if (has_more && (version == "00" || text[kChars] != '-')) return std::nullopt;
  const std::string_view trace_id = text.substr(kTraceIdAt, kTraceIdChars);
  const std::string_view span_id = text.substr(kSpanIdAt, kSpanIdChars);
  const std::string_view flags = text.substr(kFlagsAt, 2);
  if (!is_id(trace_id) || !is_id(span_id) || !is_hex(flags)) return std::nullopt;
  return TraceContext{.trace_id = std::string(trace_id),
                      .span_id = std::string(span_id),
                      .sampled = (from_hex(flags) & kSampledFlag) != 0};
}

std::string format_traceparent(const TraceContext& context) {
  return "00-" + context.trace_id + "-" + context.span_id + (context.sampled ? "-01" : "-00");
}

std::string make_trace_id() {
  std::string id;
  while (!is_id(id)) id = random_id();  // an id of nothing but 0 is none
  return id;
}

std::string make_span_id() {
  std::string id;
  while (!is_id(id)) id = random_id().substr(0, kSpanIdChars);
  return id;
}

bool is_in_share(std::string_view trace_id, double share) {
  constexpr size_t kRandomChars = 14;
  if (trace_id.size() < kRandomChars) return false;
  const uint64_t random = from_hex(trace_id.substr(trace_id.size() - kRandomChars));
  // In whole numbers: a double rounds the largest of 56 bits up.
  const auto least = static_cast<uint64_t>((1 - share) * static_cast<double>(uint64_t{1} << 56));
  return random >= least;
}

}  // namespace millrace::tracing
