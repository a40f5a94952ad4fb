// SPDX-License-Identifier: Apache-2.0
// Dispatches a dtype known at run time to an element type known at compile time.
#pragma once

#include "common/check.h"
#include "common/dtype.h"

namespace millrace::kernels::cuda {

// Calls body(Element{}) with float, BFloat16 or Float16.
template <typename Body>
void dispatch_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(float{});
    case DType::kBFloat16:
      return body(BFloat16{});
    case DType::kFloat16:
      return body(Float16{});
  }
}

// For operands of the tensor cores: BFloat16 or Float16.
template <typename Body>
void dispatch_narrow_dtype(DType dtype, Body&& body) {
  MR_CHECK(dtype != DType::kFloat32, "the tensor cores multiply 16-bit numbers, not float32");
  if (dtype == DType::kBFloat16) {
    body(BFloat16{});
  } else {
    body(Float16{});
  }
}

// For products that an element-wise operation reads (DeviceInfo::projection_dtype): float or
// BFloat16.
template <typename Body>
void dispatch_projection_dtype(DType dtype, Body&& body) {
  MR_CHECK(dtype != DType::kFloat16, "products may exceed what float16 holds: they are float32");
  if (dtype == DType::kFloat32) {
    body(float{});
  } else {
    body(BFloat16{});
  }
}

}  // namespace millrace::kernels::cuda
