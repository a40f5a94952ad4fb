// SPDX-License-Identifier: Apache-2.0
// Shows the progress of a streamed request on stderr: a bar on a terminal, otherwise an occasional
// line.
#pragma once

#include <cstdint>
#include <string>

#include "common/clock.h"
#include "protocol/sse_parser.h"

namespace millrace::client {

class ProgressView {
 public:
  explicit ProgressView(bool terminal) : terminal_(terminal) {}

  void show(const protocol::SseEvent& event);

  // "[########------------]  12/32 layers  density 0.13  4.2 s"; public for tests.
  static std::string bar(int64_t done, int64_t total, double mean_density, double elapsed_s);

 private:
  void show_layer(const std::string& data);

  bool terminal_;
  Stopwatch since_start_;
  double density_sum_ = 0;
  int64_t last_tenth_ = 0;
};

}  // namespace millrace::client
