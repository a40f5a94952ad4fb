// SPDX-License-Identifier: Apache-2.0
// The query of a URL: "model=a%20b&stream=true".
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"

namespace millrace::coordinator {

// Decodes %XX and '+', which forms write for a space.
Result<std::string> percent_decode(std::string_view text);
// Everything but letters, digits and "-._~" becomes %XX.
std::string percent_encode(std::string_view text);

// In the order given, names not made unique.
Result<std::vector<std::pair<std::string, std::string>>> parse_query(std::string_view query);

}  // namespace millrace::coordinator
