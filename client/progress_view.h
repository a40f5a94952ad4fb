// Shows on stderr how far a streamed request is: a bar on a terminal, else a line now and then.
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

  // "[########------------]  12/32 layers  density 0.13  4.2 s": for tests as well.
  static std::string bar(int64_t done, int64_t total, double mean_density, double elapsed_s);

 private:
  void show_layer(const std::string& data);

  bool terminal_;
  Stopwatch since_start_;
  double density_sum_ = 0;
  int64_t last_tenth_ = 0;
};

}  // namespace millrace::client
