// SPDX-License-Identifier: Apache-2.0
// Logging: log::warn("group {} left: {}", id, why). Any thread. Libraries log and never configure it; a
// program sets it up once (common/logging/init_logging.h). spdlog does the work, in log.cc alone: each
// source that calls it instantiates all of fmt, 3 s of compiling.
#pragma once

#include <fmt/core.h>

#include <cstdint>

namespace millrace::log {

enum class Level : uint8_t { kDebug, kInfo, kWarn, kError, kCritical };

// Lines below `level` are left out from now on.
void set_level(Level level);
// Waits until the lines so far have been written, or for a second.
void flush();

// A line whose text cannot be made (memory) is left out.
void write(Level level, fmt::string_view format, fmt::format_args args) noexcept;

template <typename... Args>
void at(Level level, fmt::format_string<Args...> format, Args&&... args) {
  write(level, format, fmt::make_format_args(args...));
}
template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, format, fmt::make_format_args(args...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, format, fmt::make_format_args(args...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarn, format, fmt::make_format_args(args...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, format, fmt::make_format_args(args...));
}
template <typename... Args>
void critical(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kCritical, format, fmt::make_format_args(args...));
}

}  // namespace millrace::log
