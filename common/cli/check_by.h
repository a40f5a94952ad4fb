// A check of an option by a function that reads it.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::cli {

// What the function has against a text; empty where it reads it.
template <typename T>
auto check_by(Result<T> (*parse)(std::string_view)) {
  return [parse](const std::string& text) {
    const auto parsed = parse(text);
    return parsed.ok() ? std::string() : parsed.error().message;
  };
}

}  // namespace millrace::cli
