// SPDX-License-Identifier: Apache-2.0
// Records which phase a device is in, by marks in the device's own order of execution: on a GPU the
// host is long past a layer when the device begins it.
#pragma once

#include <deque>
#include <optional>

#include "engine/phase_times.h"
#include "kernels/api/device_memory.h"

namespace millrace::engine {

class PhaseClock {
 public:
  // Both outlive the clock.
  PhaseClock(kernels::DeviceMemory& device, PhaseTimes& times) : device_(device), times_(times) {}

  // Ends the previous phase if it is a different one. Where so many phases wait to be settled that
  // the device may forget their marks (kernels::kMarksKept), the previous phase continues instead.
  // With several ranks a layer has two marks a row tile, so this takes a rank of millions of rows.
  void enter(Phase phase);
  // Returns the mark at which the last phase ends.
  kernels::TimeMark stop();
  // Adds the phases that ended no later than `passed`, a mark that has been waited for.
  void settle(kernels::TimeMark passed);

 private:
  struct Ended {
    Phase phase;
    kernels::TimeMark begin;
    kernels::TimeMark end;
  };
  struct Open {
    Phase phase;
    kernels::TimeMark begin;
  };

  kernels::DeviceMemory& device_;
  PhaseTimes& times_;
  std::optional<Open> open_;
  std::deque<Ended> ended_;  // in order
};

}  // namespace millrace::engine
