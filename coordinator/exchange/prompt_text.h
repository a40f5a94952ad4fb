// SPDX-License-Identifier: Apache-2.0
// Turns a text prompt into token ids with the tokenizer of its model.
#pragma once

#include <optional>

#include "common/net/net_stream.h"
#include "coordinator/http/http_shared.h"
#include "coordinator/net/awaitable.h"
#include "coordinator/requests/prefill_body.h"
#include "coordinator/requests/refusal.h"

namespace millrace::coordinator {

class PromptText {
 public:
  // Both must outlive it. `stream`: to notice that the client leaves.
  PromptText(HttpShared& shared, NetStream& stream) : shared_(shared), stream_(stream) {}

  // Sets the token ids of `body`, which has a text for a model that is served, or says why not. The
  // time that this takes counts towards the request's deadline.
  awaitable<std::optional<Refusal>> tokenize(PrefillBody& body);

 private:
  std::optional<Refusal> check(const PrefillBody& body) const;
  std::optional<Refusal> check_ids(const PrefillBody& body) const;
  awaitable<Result<std::vector<int32_t>>> ask(PrefillBody& body, Deadline deadline);

  HttpShared& shared_;
  NetStream& stream_;
};

}  // namespace millrace::coordinator
