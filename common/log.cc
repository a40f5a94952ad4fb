// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>
#include <string_view>

namespace millrace {

std::optional<spdlog::level::level_enum> parse_log_level(const std::string& word) {
  const auto level = spdlog::level::from_str(word);
  // spdlog returns "off" for unknown words.
  if (level == spdlog::level::off && word != "off") return std::nullopt;
  return level;
}

void init_logging(const std::string& process_name) {
  auto logger = spdlog::stderr_color_mt("millrace-" + process_name);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ " + process_name + ": %v",
                      spdlog::pattern_time_type::utc);
  spdlog::set_default_logger(logger);
  const char* given = std::getenv("MILLRACE_LOG");
  if (given == nullptr || std::string_view(given).empty()) return;
  if (const auto level = parse_log_level(given)) {
    logger->set_level(*level);
  } else {
    spdlog::warn("MILLRACE_LOG: unknown level '{}'; expected one of {}; using info", given,
                 kLogLevels);
  }
}

}  // namespace millrace
