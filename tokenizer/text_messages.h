// SPDX-License-Identifier: Apache-2.0
// The requests to a tokenizer process, and the meaning of its replies. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "tokenizer/frame.h"

namespace millrace::tokenizer {

// What one process can read within its memory (tokenizer_process.h): four million tokens of
// English.
inline constexpr int64_t kMaxTextBytes = 16ll << 20;
// How many preceding tokens the text of a token depends on: those that begin a character, which has
// at most four bytes, and the word that a blank belongs to.
inline constexpr size_t kContextTokens = 8;

Frame encode_request(std::string text, bool add_special_tokens);
// `body`: of a chat completion, whose messages the model's chat template turns into a text.
Frame chat_request(std::string body, bool add_special_tokens);
// The ids in the reply to either request. kCorrupt where an id is not below `num_ids`.
Result<std::vector<int32_t>> encoded_ids(const Frame& reply, int64_t num_ids);

// What tokens add to the text of the tokens before them.
struct FollowingText {
  // Without special tokens, and without incomplete characters.
  std::string text;
  // The text of each listed token, special or not; "bytes:\xe2\x82" where it is part of a
  // character.
  std::vector<std::string> names;
};

// `context`: the tokens before; only the last kContextTokens are used.
Frame following_request(std::span<const int32_t> context, const std::vector<int32_t>& token_ids,
                        const std::vector<int32_t>& listed);
Result<FollowingText> following_text(const Frame& reply);

}  // namespace millrace::tokenizer
