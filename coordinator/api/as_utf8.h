// SPDX-License-Identifier: Apache-2.0
// A text with U+FFFD in place of bytes that are not UTF-8, since JSON is UTF-8: an error quotes what
// a client sent and may cut it in the middle of a character. Pure.
#pragma once

#include <string>
#include <string_view>

namespace millrace::coordinator {

std::string as_utf8(std::string_view text);

}  // namespace millrace::coordinator
