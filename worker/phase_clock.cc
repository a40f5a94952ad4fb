#include "worker/phase_clock.h"

namespace millrace::worker {

void PhaseClock::enter(Phase phase) {
  const kernels::TimeMark now = device_.mark();
  if (open_) ended_.push_back({.phase = open_->phase, .begin = open_->begin, .end = now});
  open_ = {.phase = phase, .begin = now};
}

void PhaseClock::stop() {
  if (!open_) return;
  ended_.push_back({.phase = open_->phase, .begin = open_->begin, .end = device_.mark()});
  open_.reset();
}

void PhaseClock::settle() {
  for (const auto& stretch : ended_) {
    times_.add(stretch.phase, device_.elapsed_s(stretch.begin, stretch.end));
  }
  ended_.clear();
}

}  // namespace millrace::worker
