// SPDX-License-Identifier: Apache-2.0
#include "common/logging/log_sink.h"

#include "common/logging/printable.h"

namespace millrace {

namespace {

constexpr std::chrono::seconds kFlushPatience{1};

std::string_view colour_of(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return "\033[31m\033[1m";
  if (level == spdlog::level::warn) return "\033[33m\033[1m";
  return level == spdlog::level::info ? "\033[32m" : "\033[36m";
}

}  // namespace

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  const std::string_view payload(message.payload.data(), message.payload.size());
  writer_->write(format(message, printable(payload)), [&](int64_t num_lines) {
    spdlog::details::log_msg gap = message;
    gap.level = spdlog::level::warn;
    return format(gap, fmt::format("{} lines are missing here: nobody read the log", num_lines));
  });
}

std::string LogSink::format(const spdlog::details::log_msg& message, std::string_view text) {
  spdlog::details::log_msg shown = message;
  shown.payload = spdlog::string_view_t(text.data(), text.size());
  spdlog::memory_buf_t buffer;
  formatter_->format(shown, buffer);
  std::string line(buffer.data(), buffer.size());
  if (colours_ && shown.color_range_end > shown.color_range_start) {
    line.insert(shown.color_range_end, "\033[m");
    line.insert(shown.color_range_start, colour_of(shown.level));
  }
  return line;
}

// With the sink's lock held: lines of other threads wait as long.
void LogSink::flush_() {
  writer_->flush(Deadline::after(kFlushPatience));
}

}  // namespace millrace
