// Logging is spdlog, set up once per process. Libraries log through the default logger and never
// configure it.
#pragma once

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

inline constexpr std::string_view kLogLevels = "trace, debug, info, warn, error, critical, off";

// None when `word` is none of kLogLevels.
std::optional<spdlog::level::level_enum> parse_log_level(const std::string& word);

// `process_name` heads every line ("worker/3"), after the time in UTC. The level comes from
// MILLRACE_LOG, default info, also where it says something else than a level. Lines go to stderr:
// stdout belongs to results.
void init_logging(const std::string& process_name);

}  // namespace millrace
