// SPDX-License-Identifier: Apache-2.0
// MR_CHECK is for broken invariants only, never for input or the network. It is always on, prints
// the values and aborts.
#pragma once

#include <fmt/core.h>

#include <source_location>
#include <string>

namespace millrace {

[[noreturn]] void check_failed(const char* condition, const std::string& message,
                               std::source_location where);

}  // namespace millrace

#define MR_CHECK(condition, ...)                                     \
  do {                                                               \
    if (!(condition)) [[unlikely]] {                                 \
      ::millrace::check_failed(#condition, fmt::format(__VA_ARGS__), \
                               std::source_location::current());     \
    }                                                                \
  } while (false)

#ifdef NDEBUG
#define MR_DCHECK(condition, ...) ((void)0)
#else
#define MR_DCHECK(condition, ...) MR_CHECK(condition, __VA_ARGS__)
#endif
