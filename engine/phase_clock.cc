// SPDX-License-Identifier: Apache-2.0
#include "engine/phase_clock.h"

namespace millrace::engine {

namespace {

// The other half is for marks other than those of phases.
constexpr size_t kMaxUnsettled = kernels::kMarksKept / 2;

}  // namespace

void PhaseClock::enter(Phase phase) {
  if (open_ && (open_->phase == phase || ended_.size() >= kMaxUnsettled)) return;
  const kernels::TimeMark now = device_.mark();
  if (open_) ended_.push_back({.phase = open_->phase, .begin = open_->begin, .end = now});
  open_ = {.phase = phase, .begin = now};
}

kernels::TimeMark PhaseClock::stop() {
  const kernels::TimeMark now = device_.mark();
  if (open_) ended_.push_back({.phase = open_->phase, .begin = open_->begin, .end = now});
  open_.reset();
  return now;
}

void PhaseClock::settle(kernels::TimeMark passed) {
  for (; !ended_.empty() && ended_.front().end <= passed; ended_.pop_front()) {
    const auto& ended = ended_.front();
    times_.add(ended.phase, device_.elapsed_s(ended.begin, ended.end));
  }
}

}  // namespace millrace::engine
