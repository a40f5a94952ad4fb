// SPDX-License-Identifier: Apache-2.0
// The two shapes in which a prompt is posted: how a body becomes a prefill, and how the result
// becomes an answer. What happens in between is the same (prefill_exchange.h). One per request; not
// thread-safe.
#pragma once

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
};

}  // namespace millrace::coordinator
