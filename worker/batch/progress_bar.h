// SPDX-License-Identifier: Apache-2.0
// A progress bar on stderr; draws nothing when it is not wanted (no terminal).
#pragma once

#include <cstdint>
#include <string>

#include "common/clock.h"

namespace millrace::worker {

class ProgressBar {
 public:
  explicit ProgressBar(bool visible) : visible_(visible) {}

  void start(int64_t total);
  void update(int64_t done, const std::string& note);
  void finish();

 private:
  bool visible_;
  int64_t total_ = 0;
  Stopwatch watch_;
};

}  // namespace millrace::worker
