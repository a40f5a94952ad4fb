// How long prefills have taken of late: for how long to turn a client away when the queue is full.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/clock.h"

namespace millrace::coordinator {

class PrefillPace {
 public:
  void finished(Duration prefill) { mean_s_ += kWeight * (seconds(prefill) - mean_s_); }
  // Until one of `num_groups` groups takes the next request, if prefills go on like this: 1 to 60.
  int seconds_to_next_turn(int num_groups) const {
    const double turn_s = mean_s_ / std::max(1, num_groups);
    return static_cast<int>(std::ceil(std::clamp(turn_s, 1.0, 60.0)));
  }

 private:
  static constexpr double kWeight = 0.2;  // of the latest prefill

  double mean_s_ = 1;
};

}  // namespace millrace::coordinator
