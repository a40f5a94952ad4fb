// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/prefill_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/check.h"

namespace millrace::coordinator {

namespace {

// The weight of the latest prefill, once an octave has more than a few: a change of load or plan
// shows within some ten prefills.
constexpr double kLatestWeight = 0.1;
// A length is known after this many prefills in its octave.
constexpr int kKnown = 4;

size_t octave_of(int64_t num_tokens) {
  return std::min<size_t>(std::bit_width(static_cast<uint64_t>(num_tokens)) - 1, 31);
}

Duration from_seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

}  // namespace

Duration PrefillCurve::guess(int64_t num_tokens) {
  const auto n = static_cast<double>(num_tokens);
  return from_seconds(kGuessedOverheadS + 26e-6 * n * (1 + n / 1.5e6));
}

void PrefillCurve::observe(int64_t num_tokens, Duration took) {
  MR_CHECK(num_tokens >= 1, "a prefill of {} tokens", num_tokens);
  empty_ = false;
  Octave& octave = octaves_[octave_of(num_tokens)];
  ++octave.count;
  const double weight = std::max(kLatestWeight, 1.0 / octave.count);
  const double time = std::log(std::max(1e-3, seconds(took)));
  octave.length += weight * (std::log(static_cast<double>(num_tokens)) - octave.length);
  octave.time += weight * (time - octave.time);
}

void PrefillCurve::forget(int64_t num_tokens) {
  octaves_[octave_of(num_tokens)] = {};
  empty_ = std::ranges::all_of(octaves_, [](const Octave& octave) { return octave.count == 0; });
}

Duration PrefillCurve::at(int64_t num_tokens) const {
  const double length = std::log(static_cast<double>(std::max<int64_t>(1, num_tokens)));
  const Octave* below = nullptr;
  const Octave* above = nullptr;
  for (const Octave& octave : octaves_) {
    if (octave.count == 0) continue;
    if (octave.length <= length) {
      below = &octave;
    } else if (above == nullptr) {
      above = &octave;
    }
  }
  if (below != nullptr && above != nullptr) {
    const double share = (length - below->length) / (above->length - below->length);
    return from_seconds(std::exp(below->time + share * (above->time - below->time)));
  }
  const Octave* nearest = below != nullptr ? below : above;
  if (nearest == nullptr) return guess(num_tokens);
  const double scale =
      std::exp(nearest->time) / seconds(guess(std::llround(std::exp(nearest->length))));
  return from_seconds(scale * seconds(guess(num_tokens)));
}

bool PrefillCurve::knows(int64_t num_tokens) const {
  return octaves_[octave_of(std::max<int64_t>(1, num_tokens))].count >= kKnown;
}

std::optional<Duration> PrefillCurve::least(int64_t num_tokens) const {
  if (!knows(num_tokens)) return std::nullopt;
  return from_seconds(kLeast * seconds(at(num_tokens)));
}

}  // namespace millrace::coordinator
