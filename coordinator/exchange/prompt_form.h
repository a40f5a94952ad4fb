// SPDX-License-Identifier: Apache-2.0
// The shapes in which a prompt is posted: how a body becomes a prefill, and how the result becomes
// an answer. What happens in between is the same (prefill_exchange.h). One per request; not
// thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/parse_prefill.h"
#include "coordinator/http/http_reply.h"
#include "coordinator/http/request_reader.h"
#include "coordinator/http/route.h"
#include "coordinator/net/awaitable.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

class PromptForm {
 public:
  virtual ~PromptForm() = default;
  // Called once, on a parser thread.
  virtual ParsedPrefillBody parse(const RequestReader::Request& request, const Route& route) = 0;
  // Shows the prompt as token ids, also if it was text. Called on a parser thread too.
  virtual void see_prompt(const std::vector<int32_t>& token_ids) = 0;
  // The answer to that request, which must be done.
  virtual awaitable<HttpReply> reply(const Request& record) = 0;

  // Whether the answer, one or more events, may come in a stream that has begun before. Only
  // /v1/prefill has a stream of its own (event_stream.h).
  virtual bool answers_in_events() const { return false; }
  // An event of that stream that says how far the request is; "" if that is not wanted.
  virtual std::string progress(const Request&) const { return {}; }

  // How long the prompt may take by the forecast; nullopt: however long it takes.
  virtual std::optional<Duration> decline_after() const { return std::nullopt; }
  // The answer, which is no error, if the prompt is not prefilled for this reason; nullopt: the
  // error is the answer.
  virtual std::optional<HttpReply> decline(const std::string& /*request_id*/,
                                           const Refusal& /*why*/) {
    return std::nullopt;
  }
};

}  // namespace millrace::coordinator
