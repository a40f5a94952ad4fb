// SPDX-License-Identifier: Apache-2.0
// MXFP4 (OCP Microscaling Formats 1.0, section 5.3.3): 4-bit floats, e2m1; each 32 of a row share a
// scale that is a power of two, e8m0. Layout as in gpt-oss, which stores a weight [experts, out,
// in] as X_blocks [experts, out, in / 32, 16], two elements a byte, the lower half first, and
// X_scales [experts, out, in / 32].
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace millrace::model {

inline constexpr int64_t kMxfp4Block = 32;  // elements under one scale
inline constexpr int64_t kMxfp4BlockBytes = kMxfp4Block / 2;
// The largest scale with which a block may hold 6 and stay finite: 2^125, with the bias of 127.
inline constexpr uint8_t kMaxMxfp4Scale = 252;

// Converts elements [first, first + count) of a row whose blocks and scales begin at the two
// pointers. All possible values are exact in bfloat16.
void convert_mxfp4(const std::byte* blocks, const std::byte* scales, int64_t first, int64_t count,
                   void* destination, DType destination_type);

}  // namespace millrace::model
