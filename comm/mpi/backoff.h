// SPDX-License-Identifier: Apache-2.0
// How a rank waits for MPI, which has no wait with a deadline: it polls, and gives the processor
// away more and more between polls. Ranks often share cores (four ranks on a two-core laptop), so a
// waiting rank must not starve the one that it waits for. A rank with cores of its own goes to
// sleep later: ranks of GPUs meet in every layer after waits of a millisecond, and each sleep makes
// the others wait in turn.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/clock.h"

namespace millrace::comm {

class Backoff {
 public:
  // `awake`: how long it goes on yielding after the first few times.
  explicit Backoff(Duration awake) : awake_(awake) {}

  // Call between two polls. Never sleeps past the deadline.
  void pause(Deadline deadline) {
    ++num_pauses_;
    if (num_pauses_ <= kSpins) return;
    if (num_pauses_ <= kSpins + kYields || watch_.elapsed_s() < seconds(awake_)) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(std::min<Duration>(sleep_, deadline.left()));
    sleep_ = std::min(sleep_ * 3 / 2, kLongestSleep);
  }

 private:
  // A poll takes about a microsecond. Spinning covers what a neighbour answers at once, yielding a
  // few scheduler turns, sleeping all else. 500 us is far below a layer's compute time.
  static constexpr int kSpins = 50;
  static constexpr int kYields = 200;
  static constexpr std::chrono::microseconds kFirstSleep{50};
  static constexpr std::chrono::microseconds kLongestSleep{500};

  const Duration awake_;
  const Stopwatch watch_;
  int num_pauses_ = 0;
  std::chrono::microseconds sleep_ = kFirstSleep;
};

}  // namespace millrace::comm
