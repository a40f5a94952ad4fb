// SPDX-License-Identifier: Apache-2.0
// Random numbers as a function of (seed, index): without generator state, any element can be made
// anywhere and in any order.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::model {

// SplitMix64 (Steele, Lea, Flood 2014) of both.
inline uint64_t mixed_bits(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + (index + 1) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// [low, high)
inline double mixed_uniform(uint64_t seed, uint64_t index, double low, double high) {
  return low + (high - low) * 0x1p-53 * static_cast<double>(mixed_bits(seed, index) >> 11);
}

// A seed for `name` (FNV-1a).
inline uint64_t named_seed(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return mixed_bits(seed, hash);
}

}  // namespace millrace::model
