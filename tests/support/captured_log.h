// SPDX-License-Identifier: Apache-2.0
// Keeps the lines that this process logs while it lives, in place of writing them. One at a time, on the main thread,
// before the threads that log begin.
#pragma once

#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/logging/paced_line.h"

namespace millrace {

class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("captured", sink_));
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() { spdlog::set_default_logger(before_); }

  // The newest kMostLines.
  std::vector<std::string> lines() const { return sink_->last_formatted(); }
  // How many lines a paced one can be in the time since the log began: a slow machine may see a second.
  int64_t most_paced() const {
    return 1 + (Clock::steady().now() - begun_) / PacedLine::Pace{}.pause;
  }

 private:
  static constexpr size_t kMostLines = 10'000;

  const TimePoint begun_ = Clock::steady().now();
  const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(kMostLines);
  const std::shared_ptr<spdlog::logger> before_;
};

}  // namespace millrace
