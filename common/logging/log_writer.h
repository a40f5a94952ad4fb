// SPDX-License-Identifier: Apache-2.0
// Writes lines to a descriptor by a thread of its own, so that whoever logs never waits for whoever
// reads: a pipe may be full, a terminal stopped, a disk slow. Memory is bounded; a line that finds
// no room is left out, and a line says later how many were. A reader that has gone costs its lines,
// nothing else (the process must ignore SIGPIPE).
//
// write() may be called by any thread. Destruction waits for a second at most; a thread that still
// waits for the reader then is left behind, for the end of the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/clock.h"

namespace millrace {

inline constexpr size_t kMaxLogBytes = size_t{1} << 20;

class LogWriter {
 public:
  // What is written in place of lines that were left out.
  using Gap = std::function<std::string(int64_t num_lines)>;

  // `left_out` counts lines that are not written, and outlives the thread; null: nobody counts. The
  // descriptor must stay open.
  LogWriter(int descriptor, size_t max_bytes, std::atomic<int64_t>* left_out);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  ~LogWriter();

  // `gap` makes the line that says how many lines are missing before this one. Called under a lock.
  void write(std::string line, const Gap& gap);
  // Whether all lines have been written, or given up because the reader has gone, by the deadline.
  bool flush(Deadline deadline);

 private:
  struct State;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace millrace
