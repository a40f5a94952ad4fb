// SPDX-License-Identifier: Apache-2.0
// How long each kind of group takes for a prompt, as measured.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"

namespace millrace::bench {

struct GroupTimes {
  // Between two measured lengths, a power of the length. Beyond the measured lengths, the curve of
  // the two nearest ones continues.
  double seconds_of(int64_t num_tokens) const;

  int num_gpus = 1;
  int num_layers = 32;   // a prompt can be set aside between two of them
  int layers_ahead = 0;  // given to the device by the host, and not yet computed
  double preempt_s =
      0;  // added to the other prompt by one between its layers, besides its time; may be < 0
  double between_s = 0;        // added to a prompt that begins as another ends; may be < 0
  double overhead_s = 0.02;    // from a request to its first layer, and from the last to the answer
  std::vector<double> tokens;  // ascending, at least two
  std::vector<double> seconds;
  std::shared_ptr<const GroupTimes> lane;  // times of one context-parallel rank; null: not known
};

// Reads a JSON object of {"gpus": .., "tokens": [..], "seconds": [..]} by name of the kind. If
// known, a kind also has "layers", "layers_ahead", "preempt_s", "between_s" and "overhead_s", and
// "lane": the kind that is as fast as one of its context-parallel ranks. Members that are not
// objects are comments.
Result<std::map<std::string, GroupTimes>> read_group_times(const std::string& path);

}  // namespace millrace::bench
