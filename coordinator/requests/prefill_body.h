// SPDX-License-Identifier: Apache-2.0
// What a client asks for: the fields of a prefill request, each checked. Admission checks what
// depends on the groups (vocabulary, length, known models).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/requests/on_disconnect.h"
#include "protocol/control_messages.pb.h"

namespace millrace::coordinator {

class RequestTrace;

struct PrefillBody {
  std::string model;
  std::string request_id;           // "" : to be generated
  std::optional<std::string> text;  // until it is tokenized: the prompt, in UTF-8
  bool is_chat = false;            // the text is the body of a chat completion, with messages in it
  bool add_special_tokens = true;  // to the text
  std::vector<int32_t> prompt_token_ids;              // not empty, but for a text
  std::string_view prompt_name = "prompt_token_ids";  // what the client calls it; a literal
  bool stream = false;
  bool return_progress = false;  // in the stream, where nothing else is sent for a while
  // In place of options.kv_budget: tokens to keep, by layer and kv head. 0: not given.
  int64_t kv_budget_tokens = 0;
  protocol::PrefillOptions options;           // a streaming handover only with `stream`
  std::optional<OnDisconnect> on_disconnect;  // none: the operator's default
  std::vector<uint64_t> prefix_keys;  // common/content/prefix_keys.h; none if it reads no cache
  std::string prompt_sha256;          // of the token ids; "" : shares its prefill with none
  std::string trace_id;               // as in Request
  std::shared_ptr<RequestTrace> trace;
};

}  // namespace millrace::coordinator
