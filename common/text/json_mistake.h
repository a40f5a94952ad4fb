// SPDX-License-Identifier: Apache-2.0
// What is wrong with a text that is not JSON, in words for who wrote it: the parser knows only that
// a byte is not what it expects.
#pragma once

#include <boost/system/error_code.hpp>
#include <string>
#include <string_view>

namespace millrace {

// "byte 35: half of a surrogate pair". `at`: how much of `text` Boost.JSON took before it found
// `why`. Names a byte order mark, bytes that are not UTF-8, half of a surrogate pair, NaN and
// Infinity. Pure.
std::string json_mistake(std::string_view text, size_t at, const boost::system::error_code& why);

}  // namespace millrace
