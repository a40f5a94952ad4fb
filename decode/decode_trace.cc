// SPDX-License-Identifier: Apache-2.0
#include "decode/decode_trace.h"

#include <algorithm>
#include <string>
#include <utility>

namespace millrace::decode {

using tracing::Span;

namespace {

Span part_of(const tracing::TraceContext& parent, std::string name, TimePoint begin,
             TimePoint end) {
  Span span;
  span.trace_id = parent.trace_id;
  span.span_id = tracing::make_span_id();
  span.parent_id = parent.span_id;
  span.name = std::move(name);
  span.begin = begin;
  span.end = std::max(begin, end);
  return span;
}

TimePoint after(TimePoint begin, double time_s) {
  return begin + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time_s));
}

}  // namespace

std::vector<Span> decode_spans(const tracing::TraceContext& parent, TimePoint begin, TimePoint end,
                               const Result<DecodeReport>& report) {
  Span own = part_of(parent, "decode", begin, end);
  if (!report.ok()) {
    own.failed = true;
    own.attributes = {{"error.type", std::string(errc_name(report.error().code))}};
    return {std::move(own)};
  }
  own.attributes = {{"gen_ai.operation.name", std::string("text_completion")},
                    {"gen_ai.provider.name", std::string("millrace")},
                    {"gen_ai.usage.output_tokens", std::ssize(report->token_ids)}};
  tracing::TraceContext inside = parent;
  inside.span_id = own.span_id;
  Span pull = part_of(inside, "pull", report->pull_began,
                      after(report->pull_began, report->pulled.seconds));
  pull.attributes = {{"millrace.pulled_pages", report->pulled.pages},
                     {"millrace.pulled_bytes", report->pulled.bytes},
                     {"millrace.pulled_before_done_bytes", report->bytes_before_done}};
  Span generate = part_of(inside, "generate", report->generate_began,
                          after(report->generate_began, report->generate_s));
  return {std::move(own), std::move(pull), std::move(generate)};
}

}  // namespace millrace::decode
