// SPDX-License-Identifier: Apache-2.0
// The bodies of POST /v1/completions, POST /v1/chat/completions and POST /inference/v1/generate: a
// prefill in OpenAI's shapes and in vLLM's of token ids, as sent by routers that split prefill and
// decode. Pure, as parse_prefill.h is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "coordinator/api/parse_prefill.h"

namespace millrace::coordinator {

enum class AnswerShape { kCompletion, kChat, kGenerate };

// What a completion asks for in addition to its prefill.
struct CompletionOptions {
  bool stream = false;              // answered with server-sent events
  bool include_usage = false;       // in the stream; elsewhere it is included anyway
  bool tokens_as_ids = false;       // in lists of log probabilities
  std::optional<int64_t> logprobs;  // how many tokens to list, from 0 on; nullopt: none wanted
  AnswerShape shape = AnswerShape::kCompletion;
  std::optional<bool> return_token_ids;     // those of the prompt; nullopt: not said
  bool return_progress = false;             // in the stream, while the prompt waits and runs
  std::optional<int64_t> decline_after_ms;  // nullopt: not said
};

struct CompletionBody {
  PrefillBody prefill;  // asks for no events
  CompletionOptions options;
};

using ParsedCompletionBody = std::variant<CompletionBody, Refusal>;

// Token ids are read straight into their vector and fields for the decode engine are skipped, so
// memory is bounded by the limits.
ParsedCompletionBody parse_completion(std::string_view body, const PrefillBodyLimits& limits);

// The prompt is the body itself as text (PrefillBody::is_chat); the tokenizer reads the messages in
// it.
ParsedCompletionBody parse_chat(std::string_view body, const PrefillBodyLimits& limits);

// The prompt is `token_ids`, and what a completion has in its body is in `sampling_params`.
ParsedCompletionBody parse_generate(std::string_view body, const PrefillBodyLimits& limits);

// SHA-256 of a prompt's ids as little-endian int32, in hex. A decode engine compares its own prompt
// with it.
std::string prompt_digest(const std::vector<int32_t>& token_ids);

}  // namespace millrace::coordinator
