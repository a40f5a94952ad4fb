// SPDX-License-Identifier: Apache-2.0
#include "common/logging/init_logging.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "common/log.h"
#include "common/logging/log_sink.h"
#include "common/logging/log_writer.h"

namespace millrace {

namespace {

// Lines of a log that is replaced (its process gets another name) count on.
std::atomic<int64_t> left_out{0};

}  // namespace

std::optional<spdlog::level::level_enum> parse_log_level(const std::string& word) {
  const auto level = spdlog::level::from_str(word);
  // spdlog returns "off" for unknown words.
  if (level == spdlog::level::off && word != "off") return std::nullopt;
  return level;
}

void init_logging(const std::string& process_name) {
  auto sink =
      std::make_shared<LogSink>(std::make_unique<LogWriter>(STDERR_FILENO, kMaxLogBytes, &left_out),
                                ::isatty(STDERR_FILENO) != 0);
  auto logger = std::make_shared<spdlog::logger>("millrace-" + process_name, std::move(sink));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ " + process_name + ": %v",
                      spdlog::pattern_time_type::utc);
  spdlog::set_default_logger(logger);
  const char* given = std::getenv("MILLRACE_LOG");
  if (given == nullptr || std::string_view(given).empty()) return;
  if (const auto level = parse_log_level(given)) {
    logger->set_level(*level);
  } else {
    log::warn("MILLRACE_LOG: unknown level '{}'; expected one of {}; using info", given,
              kLogLevels);
  }
}

int64_t log_lines_left_out() {
  return left_out.load();
}

}  // namespace millrace
