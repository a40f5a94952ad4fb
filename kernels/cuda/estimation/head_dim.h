// Head dims the kernels are built for.
#pragma once

#include <cstdint>
#include <type_traits>

namespace millrace::kernels::cuda {

// Calls launch with the head dim, 64 or 128 (check_slab), as a compile-time constant.
template <typename Launch>
void for_head_dim(int32_t head_dim, const Launch& launch) {
  if (head_dim == 64) {
    launch(std::integral_constant<int, 64>());
  } else {
    launch(std::integral_constant<int, 128>());
  }
}

}  // namespace millrace::kernels::cuda
