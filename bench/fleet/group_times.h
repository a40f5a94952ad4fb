// How long kinds of groups take, as measured.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"

namespace millrace::bench {

struct GroupTimes {
  // Between two measured lengths a power of the length; beyond them the last two go on.
  double seconds_of(int64_t num_tokens) const;

  int num_gpus = 1;
  int num_layers = 32;   // between which a prompt can be set aside
  int layers_ahead = 0;  // that are computed yet, as the host has given them to the device
  double preempt_s =
      0;  // that a prompt between two layers costs the other besides its own time; may be less than 0
  double between_s =
      0;  // that a prompt takes besides when it begins as another ends; may be less than 0
  double overhead_s = 0.02;    // from a request to its first layer, and from the last to the answer
  std::vector<double> tokens;  // ascending, at least two
  std::vector<double> seconds;
  std::shared_ptr<const GroupTimes> lane;  // of one context-parallel rank; null: not known
};

// A JSON object of {"gpus": .., "tokens": [..], "seconds": [..]} by name of the kind; where they are known with "layers",
// "layers_ahead", "preempt_s", "between_s" and "overhead_s", and with "lane": the kind that one context-parallel rank is as fast as. Members that are no objects are
// comments.
Result<std::map<std::string, GroupTimes>> read_group_times(const std::string& path);

}  // namespace millrace::bench
