// SPDX-License-Identifier: Apache-2.0
// Where a request's time goes on its group, by the host's clock: four stages without a gap, from
// the command that brings the request to its manifest. Phases (phase_times.h) show what a device
// does within `layers` and `tail`.
#pragma once

#include <array>
#include <string_view>

#include "common/clock.h"

namespace millrace::engine {

enum class Stage {
  kStart,   // checks, room in the store, device memory
  kLayers,  // from the embedding to the end of the last layer, with waits for the store
  kTail,    // the logits, while the last pages are written to the store
  kClose    // memory given back, final placement, manifest
};
inline constexpr std::array<std::string_view, 4> kStageNames = {"start", "layers", "tail", "close"};

class StageClock {
 public:
  // Begins with kStart. `clock` outlives this.
  explicit StageClock(const Clock& clock = Clock::steady()) : clock_(clock), begin_(clock.now()) {}

  // Ends the previous stage.
  void enter(Stage stage) {
    const TimePoint now = clock_.now();
    seconds_[static_cast<size_t>(stage_)] += seconds(now - begin_);
    begin_ = now;
    stage_ = stage;
  }
  // The stages so far, including the current one.
  std::array<double, kStageNames.size()> stop() {
    enter(stage_);
    return seconds_;
  }

 private:
  const Clock& clock_;
  Stage stage_ = Stage::kStart;
  TimePoint begin_;
  std::array<double, kStageNames.size()> seconds_ = {};
};

}  // namespace millrace::engine
