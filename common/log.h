// SPDX-License-Identifier: Apache-2.0
// Logging is spdlog, set up once per process. Libraries log through the default logger and never
// configure it.
#pragma once

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

inline constexpr std::string_view kLogLevels = "trace, debug, info, warn, error, critical, off";

// None if `word` is not one of kLogLevels.
std::optional<spdlog::level::level_enum> parse_log_level(const std::string& word);

// `process_name` follows the time (UTC) at the head of every line ("worker/3"). MILLRACE_LOG sets
// the level; it is info by default, and if MILLRACE_LOG is not a level. Lines go to stderr: stdout
// belongs to results.
void init_logging(const std::string& process_name);

}  // namespace millrace
