#include "common/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>

namespace millrace {

void init_logging(const std::string& process_name) {
  auto logger = spdlog::stderr_color_mt("millrace-" + process_name);
  logger->set_pattern("%H:%M:%S.%e %^%l%$ " + process_name + ": %v");
  if (const char* level = std::getenv("MILLRACE_LOG")) {
    logger->set_level(spdlog::level::from_str(level));
  }
  spdlog::set_default_logger(logger);
}

}  // namespace millrace
