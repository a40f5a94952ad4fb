// SPDX-License-Identifier: Apache-2.0
// Passes log lines on to a LogWriter, with everything in them made printable.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <memory>
#include <mutex>

#include "common/logging/log_writer.h"

namespace millrace {

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // With `colours`, levels are coloured, for terminals.
  LogSink(std::unique_ptr<LogWriter> writer, bool colours)
      : writer_(std::move(writer)), colours_(colours) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override;

 private:
  std::string format(const spdlog::details::log_msg& message, std::string_view text);

  const std::unique_ptr<LogWriter> writer_;
  const bool colours_;
};

}  // namespace millrace
