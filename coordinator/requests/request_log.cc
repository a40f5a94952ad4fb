// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request_log.h"

#include "common/log.h"
#include "common/logging/paced_line.h"

namespace millrace::coordinator {

namespace {

// Clients can have requests refused, or end them before they run, as fast as they can send. What a
// group has computed is rare by itself.
PacedLine& line_without_work() {
  static PacedLine line({.pause = std::chrono::milliseconds(100), .burst = 100});
  return line;
}

std::string in_trace(std::string_view trace_id) {
  return trace_id.empty() ? "" : fmt::format(", trace {}", trace_id);
}

}  // namespace

namespace {

std::string name_of(const Request& request) {
  return request.role == RequestRole::kPrefill
             ? fmt::format("prefill of request {}, which had left", request.id_at_group())
             : fmt::format("request {}", request.id);
}

}  // namespace

std::string end_line(const Request& request) {
  const std::string by = request.owner.empty() ? "" : fmt::format(" of '{}'", request.owner);
  std::string line = fmt::format("{}{}: {} tokens, {}", name_of(request), by, request.num_tokens,
                                 request.failure ? errc_name(request.failure->error.code) : "done");
  if (!request.group_name.empty()) line += fmt::format(" on group '{}'", request.group_name);
  line += fmt::format(": queue {:.2f} s", request.queue_s(*request.ended_at));
  if (request.started_at) {
    line += fmt::format(", prefill {:.2f} s", seconds(*request.ended_at - *request.started_at));
  }
  if (request.role == RequestRole::kJoined && !request.sent_as.empty()) {
    line += fmt::format(", joined {}", request.sent_as);
  }
  if (request.result) line += fmt::format(", density {:.3f}", request.result->manifest().density());
  line += in_trace(request.trace_id);
  if (request.failure) line += ": " + request.failure->error.message;
  return line;
}

void log_ended(const Request& request) {
  const auto times = request.started_at ? 1 : line_without_work().due();
  if (times) log::info("{}{}", end_line(request), PacedLine::others(*times));
}

void log_refused(std::string_view request_id, const Error& why, std::string_view trace_id) {
  if (const auto times = line_without_work().due()) {
    log::info("request {}: refused, {}{}: {}{}", request_id, errc_name(why.code),
              in_trace(trace_id), why.message, PacedLine::others(*times));
  }
}

}  // namespace millrace::coordinator
