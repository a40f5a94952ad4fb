// The body of POST /v1/prefill, in its two forms. Pure: bytes in, a checked request or the field to
// blame out. What depends on the groups (vocabulary, length, known models) is not checked here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "coordinator/api_error.h"
#include "protocol/control_messages.pb.h"

namespace millrace::coordinator {

struct PrefillBody {
  std::string model;
  std::string request_id;                 // "" : to be generated
  std::vector<int32_t> prompt_token_ids;  // not empty
  std::string head_plan;                  // "" : the group's default
  double min_recall = 0;                  // 0: the group's default
  int64_t deadline_ms = 0;                // from receipt; 0: the default
  int64_t lease_ms = 0;                   // 0: the default
  bool stream = false;
  protocol::Handover handover = protocol::HANDOVER_AT_END;  // streaming only with `stream`
};

struct PrefillBodyLimits {
  int64_t max_prompt_tokens = 16'000'000;  // what fits one control frame (protocol/codec.h)
  int64_t max_duration_ms = 24 * 3600 * 1000;
};

using ParsedPrefillBody = std::variant<PrefillBody, ApiError>;

// {"model": "...", "prompt_token_ids": [1, 2], ...}. Token ids are read straight into their vector,
// so that memory is bounded by the limits and not by how the JSON nests.
ParsedPrefillBody parse_prefill_json(std::string_view body, const PrefillBodyLimits& limits);

// Body: little-endian int32 token ids. Query: the other fields, percent-encoded.
ParsedPrefillBody parse_prefill_binary(std::string_view body, std::string_view query,
                                       const PrefillBodyLimits& limits);

// 1 to 128 of [A-Za-z0-9._:-]: ids are used in paths and log lines.
Result<void> check_request_id(std::string_view id);

}  // namespace millrace::coordinator
