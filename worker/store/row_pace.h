// SPDX-License-Identifier: Apache-2.0
// How long a group takes to compute rows of a prompt, learnt from the prompts that it has computed.
// Each head plan has a time for each row and a time for each key before the row. The two together
// fit a dense plan, whose last rows take longest, as well as a sparse one. One thread. Every rank
// learns the same, from times that all ranks have been told.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace millrace::worker {

struct RowCost {
  double row_s = 0;
  double key_s = 0;  // of a row, for each token before it

  // For rows [first, end).
  double seconds(int64_t first, int64_t end) const {
    const auto num_rows = static_cast<double>(end - first);
    return num_rows * (row_s + key_s * static_cast<double>(first + end) / 2);
  }
};

class RowPace {
 public:
  // Rows [first, end) of a prompt were computed, behind a prefix where `first` > 0. A prompt with
  // more cached rows than computed ones is ignored: its time is that of loading.
  void observe(const std::string& plan, int64_t first, int64_t end, double seconds);
  // None before a prompt of this plan was observed.
  std::optional<RowCost> of(const std::string& plan) const;

 private:
  // Sums for a linear fit of seconds a row over the mean number of keys before the rows. Each
  // prompt counts as often as it has rows; recent prompts count most.
  struct Sums {
    double weight = 0;
    double keys = 0;
    double row_s = 0;
    double keys_keys = 0;
    double keys_row_s = 0;
  };

  std::map<std::string, Sums> by_plan_;
};

}  // namespace millrace::worker
