// Logging is spdlog, set up once per process. Libraries log through the default logger and never
// configure it.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace millrace {

// `process_name` heads every line ("worker/3"). The level comes from MILLRACE_LOG (trace ...
// error), default info. Lines go to stderr: stdout belongs to results.
void init_logging(const std::string& process_name);

}  // namespace millrace
