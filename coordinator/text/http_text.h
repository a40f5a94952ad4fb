// SPDX-License-Identifier: Apache-2.0
// The parts of a URL: its path, and its query, "model=a%20b&stream=true"; and the media type in a
// Content-Type: "Text/Plain; charset=utf-8" is text/plain.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"

namespace millrace::coordinator {

// Decodes %XX.
Result<std::string> percent_decode(std::string_view text);
// Everything but letters, digits and "-._~" becomes %XX.
std::string percent_encode(std::string_view text);

// In the order given, names not made unique. '+' is a space, as forms write it.
Result<std::vector<std::pair<std::string, std::string>>> parse_query(std::string_view query);

// `type` in lower case, without parameters.
bool is_media_type(std::string_view content_type, std::string_view type);

}  // namespace millrace::coordinator
