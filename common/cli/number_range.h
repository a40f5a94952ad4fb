// SPDX-License-Identifier: Apache-2.0
// Checks of an option's number, with errors that say what it may be.
//   --threads: must be a whole number, 0 or more; not '-1'
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <limits>
#include <string>
#include <type_traits>

#include "common/clock.h"

namespace millrace::cli {

// Limit of durations given in seconds: the sum of longer ones might not fit a clock's nanoseconds.
inline constexpr double kMaxSeconds = 365.0 * 86400;

namespace detail {

template <typename T>
std::string bounds_text(T low, T high) {
  const std::string kind = std::is_integral_v<T> ? "a whole number" : "a number";
  if (high == std::numeric_limits<T>::max()) return fmt::format("{}, {} or more", kind, low);
  return fmt::format("{} from {} to {}", kind, low, high);
}

}  // namespace detail

// T is the type of the option's variable, or one with a smaller range.
template <typename T>
CLI::Validator number_range(T low, T high = std::numeric_limits<T>::max()) {
  const auto check = [low, high](const std::string& text) {
    T number{};
    if (CLI::detail::lexical_cast(text, number) && number >= low && number <= high) {
      return std::string();
    }
    return fmt::format("must be {}; not '{}'", detail::bounds_text(low, high), text);
  };
  return {check, /*validator_desc=*/"", /*validator_name=*/""};
}

// A time limit: more than zero, in clocks that count milliseconds.
inline CLI::Validator positive_seconds() {
  return number_range(0.001, kMaxSeconds);
}

inline Duration from_seconds(double value_s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value_s));
}

}  // namespace millrace::cli
