// SPDX-License-Identifier: Apache-2.0
// The largest numbers that a config.json may have: a few times those of the largest models in use
// (126 layers, hidden 16384, ffn 53248, a vocabulary of 256 K). They keep every product of two of
// them far from overflow.
#pragma once

#include <cstdint>

namespace millrace::model {

inline constexpr int32_t kMaxLayers = 1024;
inline constexpr int32_t kMaxHiddenSize = 1 << 17;
inline constexpr int32_t kMaxHeads = 1024;
inline constexpr int32_t kMaxHeadDim = 512;
inline constexpr int32_t kMaxFfnSize = 1 << 20;
inline constexpr int32_t kMaxExperts = 1024;
inline constexpr int32_t kMaxVocabSize = 1 << 22;
inline constexpr int32_t kMaxPositions = 1 << 30;  // positions are int32 in the kernels

}  // namespace millrace::model
