// SPDX-License-Identifier: Apache-2.0
// Rounding to int8 as AdaptiveParams defines it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace millrace::kernels::cpu {

struct Int8Steps {
  float step = 0;     // the largest magnitude over 127; NaN if a value is NaN or infinite
  float inverse = 0;  // 127 over the largest magnitude; 0 if that is 0, infinite or NaN

  // Rounds to nearest, halves to even: adding 1.5 * 2^23 leaves the result in the low bits of the
  // sum.
  int8_t round(float x) const {
    constexpr float kRound = 0x1.8p23F;
    return static_cast<int8_t>(static_cast<int32_t>(x * inverse + kRound - kRound));
  }
};

inline Int8Steps int8_steps(const float* values, int64_t count) {
  // In lanes, which compilers vectorise: a single chain of comparisons took a sixth of the time of
  // a prompt behind a long cached prefix. A value that is not finite, times 0, is NaN, and so is
  // the sum.
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> maxima{}, zeros{};
  const auto take = [&](int64_t lane, float value) {
    const float magnitude = std::fabs(value);
    maxima[static_cast<size_t>(lane)] = magnitude > maxima[static_cast<size_t>(lane)]
                                            ? magnitude
                                            : maxima[static_cast<size_t>(lane)];
    zeros[static_cast<size_t>(lane)] += value * 0.0F;
  };
  int64_t first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) take(lane, values[first + lane]);
  }
  for (int64_t lane = 0; first + lane < count; ++lane) take(lane, values[first + lane]);
  const float largest = *std::ranges::max_element(maxima);
  const bool finite = std::ranges::all_of(zeros, [](float zero) { return zero == 0; });
  if (!finite) return {.step = std::numeric_limits<float>::quiet_NaN()};
  return {.step = largest / 127.0F, .inverse = largest > 0 ? 127.0F / largest : 0.0F};
}

}  // namespace millrace::kernels::cpu
