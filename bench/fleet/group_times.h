// How long kinds of groups take, as measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/result.h"

namespace millrace::bench {

struct GroupTimes {
  // Between two measured lengths a power of the length; beyond them the last two go on.
  double seconds_of(int64_t num_tokens) const;

  int num_gpus = 1;
  std::vector<double> tokens;  // ascending, at least two
  std::vector<double> seconds;
};

// A JSON object of {"gpus": .., "tokens": [..], "seconds": [..]} by name of the kind; members that are
// no objects are comments.
Result<std::map<std::string, GroupTimes>> read_group_times(const std::string& path);

}  // namespace millrace::bench
