// From a dtype known at run time to an element type.
#pragma once

#include "common/check.h"
#include "common/dtype.h"

namespace millrace::kernels::cuda {

// Calls body(Element{}) with float or BFloat16: what operations compute in and write.
template <typename Body>
void dispatch_dtype(DType dtype, Body&& body) {
  MR_CHECK(dtype != DType::kFloat16, "float16 is only read, and only from an embedding table");
  if (dtype == DType::kFloat32) {
    body(float{});
  } else {
    body(BFloat16{});
  }
}

// With Float16 as well: what a file may hold.
template <typename Body>
void dispatch_any_dtype(DType dtype, Body&& body) {
  if (dtype == DType::kFloat16) {
    body(Float16{});
  } else {
    dispatch_dtype(dtype, body);
  }
}

}  // namespace millrace::kernels::cuda
