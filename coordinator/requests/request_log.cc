// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request_log.h"

#include "common/log.h"

namespace millrace::coordinator {

std::string end_line(const Request& request) {
  const std::string by = request.owner.empty() ? "" : fmt::format(" of '{}'", request.owner);
  std::string line = fmt::format("request {}{}: {} tokens, {}", request.id, by, request.num_tokens,
                                 request.failure ? errc_name(request.failure->error.code) : "done");
  if (!request.group_name.empty()) line += fmt::format(" on group '{}'", request.group_name);
  line += fmt::format(": queue {:.2f} s", request.queue_s(*request.ended_at));
  if (request.started_at) {
    line += fmt::format(", prefill {:.2f} s", seconds(*request.ended_at - *request.started_at));
  }
  if (request.result) line += fmt::format(", density {:.3f}", request.result->manifest().density());
  if (request.failure) line += ": " + request.failure->error.message;
  return line;
}

void log_ended(const Request& request) {
  spdlog::info("{}", end_line(request));
}

void log_refused(std::string_view request_id, const Error& why) {
  spdlog::info("{}", one_line(fmt::format("request {}: refused, {}: {}", request_id,
                                          errc_name(why.code), why.message)));
}

}  // namespace millrace::coordinator
