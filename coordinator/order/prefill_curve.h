// SPDX-License-Identifier: Apache-2.0
// How long a prefill takes by its length, learnt from finished prefills. One thread.
//
// Lengths are kept by octave: the running geometric means of length and time of the prefills in it.
// Between two octaves time is a power of the length; beyond the first and the last it follows
// guess(), scaled to the nearest. A curve is used rather than a fitted polynomial because lengths
// differ by four orders of magnitude: what a million tokens teach must not move what a thousand
// take.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "common/clock.h"

namespace millrace::coordinator {

class PrefillCurve {
 public:
  bool empty() const { return empty_; }
  // `num_tokens` >= 1; times below a millisecond count as one.
  void observe(int64_t num_tokens, Duration took);
  // All that was observed in the octave of this length.
  void forget(int64_t num_tokens);
  // Without observations: guess().
  Duration at(int64_t num_tokens) const;
  // Whether enough prefills of about this length were seen.
  bool knows(int64_t num_tokens) const;
  // A time that a prefill of this length hardly ever falls below; nullopt while too few of about
  // this length were seen.
  std::optional<Duration> least(int64_t num_tokens) const;
  static constexpr double kLeast = 0.5;  // of the expected time

  // The part of guess() that is the same for a prompt of any length.
  static constexpr double kGuessedOverheadS = 0.01;
  // An 8B model on one H100 under a sparse plan (docs/numbers.md). Only its shape matters once
  // a prefill has been seen.
  static Duration guess(int64_t num_tokens);

 private:
  // Natural logarithms of tokens and seconds.
  struct Octave {
    int count = 0;
    double length = 0;
    double time = 0;
  };

  bool empty_ = true;
  std::array<Octave, 32> octaves_;  // [log2(num_tokens)]
};

}  // namespace millrace::coordinator
