// SPDX-License-Identifier: Apache-2.0
// Converts runs of weights between element types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace millrace::model {

// `source` may have any alignment (files promise none); `destination` has that of its type. Rounds
// to the nearest, ties to even; in float16, values from 65,520 on become infinity.
void convert_elements(const std::byte* source, DType source_type, int64_t count, void* destination,
                      DType destination_type);

// The same for 8-bit floats (common/float8.h), each multiplied by `scale` in float32.
void convert_float8(const std::byte* source, int64_t count, float scale, void* destination,
                    DType destination_type);

}  // namespace millrace::model
