// SPDX-License-Identifier: Apache-2.0
// Reads prompts from files in the forms that people keep them in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::client {

// The token ids in `path`, as little-endian int32. A file that ends in .bin holds just these. Any
// other file is text: its line `line` (from 1) is a JSON array of token ids or an object with such
// an array under "prompt_token_ids". A JSON document over several lines is read whole when `line`
// is 1.
Result<std::string> read_prompt(const std::string& path, int64_t line);

// The same from text.
Result<std::string> prompt_from_json(std::string_view text);

}  // namespace millrace::client
