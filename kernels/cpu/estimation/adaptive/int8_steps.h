// Rounding to int8 as AdaptiveParams defines it.
#pragma once

#include <cstdint>
#include <limits>

namespace millrace::kernels::cpu {

struct Int8Steps {
  float step = 0;  // the largest magnitude over 127; not a number where a value is none or infinite
  float inverse = 0;  // 127 over the largest magnitude; 0 where that is 0, infinite or not a number

  // To the nearest, halves to even. Adding 1.5 * 2^23 leaves that in the low bits of the sum.
  int8_t round(float x) const {
    constexpr float kRound = 0x1.8p23F;
    return static_cast<int8_t>(static_cast<int32_t>(x * inverse + kRound - kRound));
  }
};

inline Int8Steps int8_steps(const float* values, int64_t count) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = values[i] < 0 ? -values[i] : values[i];
    finite &= magnitude <= std::numeric_limits<float>::max();
    largest = magnitude > largest ? magnitude : largest;
  }
  if (!finite) return {.step = std::numeric_limits<float>::quiet_NaN()};
  return {.step = largest / 127.0F, .inverse = largest > 0 ? 127.0F / largest : 0.0F};
}

}  // namespace millrace::kernels::cpu
