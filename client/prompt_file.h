// Prompts from files, in the forms that people have them in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::client {

// Little-endian int32 token ids of `path`: a file that ends in .bin holds just that; any other is
// text, whose line `line` (from 1) is a JSON array of token ids or an object with such an array
// under "prompt_token_ids". A JSON document over several lines is taken whole when `line` is 1.
Result<std::string> read_prompt(const std::string& path, int64_t line);

// The same from text.
Result<std::string> prompt_from_json(std::string_view text);

}  // namespace millrace::client
