// SPDX-License-Identifier: Apache-2.0
// A prompt as it arrives from outside, and the checks it passes before any memory is taken for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/config/config.h"

namespace millrace::engine {

struct PromptLimits {
  int32_t vocab_size = 0;
  int64_t max_prompt_tokens = 0;  // the lower of the model's limit and that of the group's memory
  int64_t memory_bytes = 0;       // for prompts, on the rank with the least
};

// kInvalidArgument: empty, or a token outside the vocabulary (which, where); kTooLarge: longer than
// the limit.
Result<void> check_prompt(std::span<const int32_t> token_ids, const PromptLimits& limits);
// kInvalidArgument: a token is outside the vocabulary (which, where).
Result<void> check_token_ids(std::span<const int32_t> token_ids, int32_t vocab_size);

// Little-endian int32, as prompts are sent. kInvalidArgument when the size is no multiple of 4.
Result<std::vector<int32_t>> decode_token_ids(std::string_view bytes);
std::string encode_token_ids(std::span<const int32_t> token_ids);

}  // namespace millrace::engine
