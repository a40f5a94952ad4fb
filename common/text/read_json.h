// SPDX-License-Identifier: Apache-2.0
// Reads a whole JSON text whose author may have made a mistake, and says what is wrong in words for the
// author: the parser knows only that a byte is not what it expects.
#pragma once

#include <boost/json/value.hpp>
#include <boost/system/error_code.hpp>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace {

// kInvalidArgument says where the text stops being JSON, and why (json_mistake). Pure.
Result<boost::json::value> read_json(std::string_view text, size_t max_depth = 32);

// "byte 35: half of a surrogate pair". `at`: how much of `text` Boost.JSON took before it found
// `why`. Names a byte order mark, bytes that are not UTF-8, half of a surrogate pair, NaN and
// Infinity. Pure.
std::string json_mistake(std::string_view text, size_t at, const boost::system::error_code& why);

}  // namespace millrace
