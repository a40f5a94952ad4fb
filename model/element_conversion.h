// Conversion of runs of weights between element types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace millrace::model {

// `source` has any alignment (files promise none); `destination` that of its type. To bfloat16
// rounds to nearest even; to float16 is not needed by anyone and a bug, except from float16.
void convert_elements(const std::byte* source, DType source_type, int64_t count, void* destination,
                      DType destination_type);

}  // namespace millrace::model
