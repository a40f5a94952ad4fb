// How long a group takes to compute rows of a prompt, learnt from the prompts that it has computed: by head plan, a time
// for each row and one for each key before it. Both together fit a dense plan, whose last rows take longest, and a
// sparse one. One thread; every rank learns the same, from times that all ranks have been told.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace millrace::worker {

struct RowCost {
  double row_s = 0;
  double key_s = 0;  // of a row, for each token before it

  // Of rows [first, end).
  double seconds(int64_t first, int64_t end) const {
    const auto num_rows = static_cast<double>(end - first);
    return num_rows * (row_s + key_s * static_cast<double>(first + end) / 2);
  }
};

class RowPace {
 public:
  // Rows [first, end) of a prompt were computed, behind a prefix where `first` > 0. A prompt of which more was cached
  // than computed teaches nothing: its time is that of loading.
  void observe(const std::string& plan, int64_t first, int64_t end, double seconds);
  // None before a prompt of this plan.
  std::optional<RowCost> of(const std::string& plan) const;

 private:
  // Sums over the prompts so far, those of late counting most, each as often as it has rows: of seconds a row over the
  // mean number of keys before them.
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
