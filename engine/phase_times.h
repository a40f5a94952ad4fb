// SPDX-License-Identifier: Apache-2.0
// Where a rank's time goes, by phase of the layer.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "common/clock.h"

namespace millrace::engine {

enum class Phase {
  kEmbed,
  kQkv,
  kExchange,
  kEstimate,
  kAttention,
  kMlp,
  kStore,
  kLogits,
  kGenerate
};
inline constexpr std::array<std::string_view, 9> kPhaseNames = {
    "embed", "qkv", "exchange", "estimate", "attention", "mlp", "store", "logits", "generate"};

class PhaseTimes {
 public:
  // Adds the time from construction to destruction to a phase.
  class Span {
   public:
    Span(PhaseTimes& times, Phase phase) : times_(times), phase_(phase) {}
    ~Span() { times_.add(phase_, watch_.elapsed_s()); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    PhaseTimes& times_;
    Phase phase_;
    Stopwatch watch_;
  };

  void add(Phase phase, double elapsed_s) { seconds_[static_cast<size_t>(phase)] += elapsed_s; }
  double operator[](Phase phase) const { return seconds_[static_cast<size_t>(phase)]; }
  std::array<double, kPhaseNames.size()>& seconds() { return seconds_; }
  const std::array<double, kPhaseNames.size()>& seconds() const { return seconds_; }

 private:
  std::array<double, kPhaseNames.size()> seconds_ = {};
};

// For each phase, the time of the rank that took longest.
inline PhaseTimes slowest(std::span<const PhaseTimes> ranks) {
  PhaseTimes slowest;
  for (const auto& rank : ranks) {
    for (size_t i = 0; i < kPhaseNames.size(); ++i) {
      slowest.seconds()[i] = std::max(slowest.seconds()[i], rank.seconds()[i]);
    }
  }
  return slowest;
}

}  // namespace millrace::engine
