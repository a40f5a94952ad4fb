// SPDX-License-Identifier: Apache-2.0
// Element access by dtype for the reference: slow and obvious.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace millrace::kernels::ref {

inline double load(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[i];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(data)[i]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(data)[i]);
  }
  return 0;
}

inline void store(void* data, DType dtype, int64_t i, double value) {
  const auto rounded = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[i] = rounded;
      return;
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[i] = to_bfloat16(rounded);
      return;
    case DType::kFloat16:
      static_cast<Float16*>(data)[i] = to_float16(rounded);
      return;
  }
}

}  // namespace millrace::kernels::ref
