// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <spdlog/spdlog.h>

#include <exception>
#include <string>

namespace millrace::log {

namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kCritical:
      return spdlog::level::critical;
  }
  return spdlog::level::critical;
}

}  // namespace

void set_level(Level level) {
  spdlog::set_level(to_spdlog(level));
}

void flush() {
  if (auto* logger = spdlog::default_logger_raw()) logger->flush();
}

void write(Level level, fmt::string_view format, fmt::format_args args) noexcept {
  auto* logger = spdlog::default_logger_raw();
  const auto shown_as = to_spdlog(level);
  if (logger == nullptr || !logger->should_log(shown_as)) return;
  try {
    const std::string text = fmt::vformat(format, args);
    logger->log(shown_as, spdlog::string_view_t(text));
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace millrace::log
