// SPDX-License-Identifier: Apache-2.0
// Test data as a function of (seed, index). There is no generator state, so any element can be
// recomputed anywhere, in any order and by any rank.
#pragma once

#include <cstdint>
#include <vector>

#include "common/dtype.h"

namespace millrace::test {

// SplitMix64 of seed and index: the same on every machine.
uint64_t random_bits(uint64_t seed, uint64_t index);
// In [0, 1), a multiple of 2^-24.
float random_uniform(uint64_t seed, uint64_t index);
// Approximately normal, mean 0, variance 1, within +-6 (a sum of twelve uniforms).
float random_normal(uint64_t seed, uint64_t index);

std::vector<float> random_normals(uint64_t seed, int64_t count, float scale = 1.0F);

// Rounds to bfloat16, and back.
std::vector<BFloat16> narrow(const std::vector<float>& values);
std::vector<float> widen(const std::vector<BFloat16>& values);
// Rounds to float16, and back.
std::vector<Float16> narrow_to_float16(const std::vector<float>& values);
std::vector<float> widen(const std::vector<Float16>& values);
// The bits of a 16-bit dtype, and back.
std::vector<uint16_t> narrow_bits(const std::vector<float>& values, DType dtype);
std::vector<float> widen_bits(const std::vector<uint16_t>& bits, DType dtype);

}  // namespace millrace::test
