// SPDX-License-Identifier: Apache-2.0
// The body of POST /v1/prefill in its three forms: JSON, raw text, raw token ids. Pure: bytes in; out
// comes a checked request or the field to blame. What depends on the groups (vocabulary, length,
// known models) is not checked here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "coordinator/requests/prefill_body.h"
#include "coordinator/requests/refusal.h"
#include "coordinator/text/limits.h"

namespace millrace::coordinator {

struct PrefillBodyLimits {
  int64_t max_prompt_tokens = 16'000'000;  // what fits one control frame (protocol/codec.h)
  int64_t max_duration_ms = kMaxDurationMs;
  int64_t max_text_bytes = kMaxTextBytes;
};

using ParsedPrefillBody = std::variant<PrefillBody, Refusal>;

// {"model": "...", "prompt_token_ids": [1, 2], ...}, or with "text". Token ids are read straight
// into their vector, so memory is bounded by the limits and not by how the JSON nests.
ParsedPrefillBody parse_prefill_json(std::string_view body, const PrefillBodyLimits& limits);

// The same with text in place of token ids. Body: the text in UTF-8.
ParsedPrefillBody parse_prefill_text(std::string_view body, std::string_view query,
                                     const PrefillBodyLimits& limits);

// Body: little-endian int32 token ids. Query: the other fields, percent-encoded.
ParsedPrefillBody parse_prefill_binary(std::string_view body, std::string_view query,
                                       const PrefillBodyLimits& limits);

}  // namespace millrace::coordinator
