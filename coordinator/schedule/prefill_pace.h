// SPDX-License-Identifier: Apache-2.0
// How long recent prefills have taken. When the queue is full, this tells a client when to try
// again.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/clock.h"

namespace millrace::coordinator {

class PrefillPace {
 public:
  void finished(Duration prefill) { mean_s_ += kWeight * (seconds(prefill) - mean_s_); }
  // Seconds, 1 to 60, until one of `num_groups` groups takes the next request if prefills go on
  // like this.
  int seconds_to_next_turn(int num_groups) const {
    const double turn_s = mean_s_ / std::max(1, num_groups);
    return static_cast<int>(std::ceil(std::clamp(turn_s, 1.0, 60.0)));
  }

 private:
  static constexpr double kWeight = 0.2;  // of the latest prefill

  double mean_s_ = 1;
};

}  // namespace millrace::coordinator
