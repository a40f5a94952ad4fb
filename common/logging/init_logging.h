// SPDX-License-Identifier: Apache-2.0
// Sets up the log of a process, which is written to stderr by a thread of its own: a log that
// nobody reads holds nothing up. Lines that find no room in its memory are left out and counted.
#pragma once

#include <spdlog/common.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

inline constexpr std::string_view kLogLevels = "trace, debug, info, warn, error, critical, off";

// None if `word` is not one of kLogLevels.
std::optional<spdlog::level::level_enum> parse_log_level(const std::string& word);

// `process_name` follows the time (UTC) at the head of every line ("worker/3"). MILLRACE_LOG sets
// the level; it is info by default, and if MILLRACE_LOG is not a level. Lines go to stderr: stdout
// belongs to results. Text that could forge a line or turn one around is escaped (printable()).
//
// Flushing the logger waits until the lines have been written, or for a second.
void init_logging(const std::string& process_name);

// Lines that this process has left out because nobody read its log.
int64_t log_lines_left_out();

}  // namespace millrace
