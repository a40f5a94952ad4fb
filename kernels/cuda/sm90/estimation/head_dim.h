// SPDX-License-Identifier: Apache-2.0
// The head dimensions and element types that the kernels are built for.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/runtime/dispatch_dtype.h"

namespace millrace::kernels::cuda {

// Calls launch with the head dimension (64, 128 or 256, see check_slab) as a compile-time constant.
template <typename Launch>
void for_head_dim(int32_t head_dim, const Launch& launch) {
  if (head_dim == 64) {
    launch(std::integral_constant<int, 64>());
  } else if (head_dim == 128) {
    launch(std::integral_constant<int, 128>());
  } else {
    launch(std::integral_constant<int, 256>());
  }
}

// Likewise, with the element type of Q and K as well: launch(BFloat16{} or Float16{}, head_dim).
template <typename Launch>
void for_elements(DType dtype, int32_t head_dim, const Launch& launch) {
  dispatch_narrow_dtype(dtype, [&](auto element) {
    for_head_dim(head_dim, [&](auto constant) { launch(element, constant); });
  });
}

}  // namespace millrace::kernels::cuda
