// SPDX-License-Identifier: Apache-2.0
// Checks an option's value with the function that parses it.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::cli {

// The check returns the parser's error for a text; empty if it parses.
template <typename T>
auto check_by(Result<T> (*parse)(std::string_view)) {
  return [parse](const std::string& text) {
    const auto parsed = parse(text);
    return parsed.ok() ? std::string() : parsed.error().message;
  };
}

}  // namespace millrace::cli
