// Prompts as they arrive: from a file, or drawn from published statistics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace millrace::bench {

struct Arrival {
  double at_s = 0;  // from the first one; a trace is in this order
  int64_t num_tokens = 0;
  std::string owner;
};

using Trace = std::vector<Arrival>;

// A file of one JSON object a line. Either {"at_s": 0.25, "tokens": 67000, "owner": "a"}, owner
// optional, or the format of Mooncake's published traces, {"timestamp": 250, "input_length": 67000,
// ...}, in milliseconds. Anything else is an error that names the line.
Result<Trace> read_trace(const std::string& path);

struct TraceShape {
  int64_t num_requests = 10'000;
  double requests_per_s = 1;
  int num_owners = 1;  // who send equally often
  uint64_t seed = 1;
};

// Poisson arrivals; lengths as services for long prompts report them: 18 % under 8K tokens, a median of
// 67K, 53 % of at least 64K, 3.5 % over 256K, the longest a million; between these points the
// logarithm of the length is uniform.
Trace draw_trace(const TraceShape& shape);

}  // namespace millrace::bench
