// SPDX-License-Identifier: Apache-2.0
// Reads a whole JSON text whose author may have made a mistake.
#pragma once

#include <boost/json/value.hpp>
#include <string_view>

#include "common/result.h"

namespace millrace {

// kInvalidArgument says where the text stops being JSON, and why (json_mistake.h). Pure.
Result<boost::json::value> read_json(std::string_view text, size_t max_depth = 32);

}  // namespace millrace
