// Element access by dtype for the reference: slow and obvious.
#pragma once

#include <cstdint>

#include "common/check.h"
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

// float32 or bfloat16.
inline void store(void* data, DType dtype, int64_t i, double value) {
  MR_CHECK(dtype != DType::kFloat16, "float16 is never written");
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[i] = static_cast<float>(value);
  } else {
    static_cast<BFloat16*>(data)[i] = to_bfloat16(static_cast<float>(value));
  }
}

}  // namespace millrace::kernels::ref
