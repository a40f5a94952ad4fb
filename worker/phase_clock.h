// Tells which phase a device is in, by marks in its own order of execution: on a GPU the host is
// long through with a layer when the device begins it.
#pragma once

#include <optional>
#include <vector>

#include "kernels/api/device.h"
#include "worker/phase_times.h"

namespace millrace::worker {

class PhaseClock {
 public:
  // Both outlive the clock.
  PhaseClock(kernels::Device& device, PhaseTimes& times) : device_(device), times_(times) {}

  // Ends the phase before, if any.
  void enter(Phase phase);
  void stop();
  // Adds the phases that had ended when the device was last synchronized. To be called after each
  // synchronize, or marks are forgotten (kernels::kMarksKept).
  void settle();

 private:
  struct Stretch {
    Phase phase;
    kernels::TimeMark begin;
    kernels::TimeMark end;
  };
  struct Open {
    Phase phase;
    kernels::TimeMark begin;
  };

  kernels::Device& device_;
  PhaseTimes& times_;
  std::optional<Open> open_;
  std::vector<Stretch> ended_;
};

}  // namespace millrace::worker
