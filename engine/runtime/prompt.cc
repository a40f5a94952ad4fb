// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/prompt.h"

#include <bit>
#include <cstring>

namespace millrace::engine {

static_assert(std::endian::native == std::endian::little, "prompts and pages travel little-endian");

Result<void> check_prompt(std::span<const int32_t> token_ids, const PromptLimits& limits) {
  if (token_ids.empty()) return error(Errc::kInvalidArgument, "the prompt is empty");
  if (static_cast<int64_t>(token_ids.size()) > limits.max_prompt_tokens) {
    return error(Errc::kTooLarge, "prompt of {} tokens, limit {}", token_ids.size(),
                 limits.max_prompt_tokens);
  }
  return check_token_ids(token_ids, limits.vocab_size);
}

Result<void> check_token_ids(std::span<const int32_t> token_ids, int32_t vocab_size) {
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] < 0 || token_ids[i] >= vocab_size) {
      return error(Errc::kInvalidArgument, "token id {} at position {} is outside [0, {})",
                   token_ids[i], i, vocab_size);
    }
  }
  return {};
}

Result<std::vector<int32_t>> decode_token_ids(std::string_view bytes) {
  if (bytes.size() % sizeof(int32_t) != 0) {
    return error(Errc::kInvalidArgument, "{} bytes are not a whole number of int32 token ids",
                 bytes.size());
  }
  std::vector<int32_t> token_ids(bytes.size() / sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(token_ids.data(), bytes.data(), bytes.size());
  return token_ids;
}

std::string encode_token_ids(std::span<const int32_t> token_ids) {
  return {reinterpret_cast<const char*>(token_ids.data()), token_ids.size_bytes()};
}

}  // namespace millrace::engine
