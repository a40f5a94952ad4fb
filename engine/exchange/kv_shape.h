// SPDX-License-Identifier: Apache-2.0
// A layer's K or V of one rank, as the engine has it.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace millrace::engine {

struct KvShape {
  int32_t num_kv_heads = 0;   // of this rank
  int32_t first_kv_head = 0;  // of them, in the model
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;

  int64_t row_bytes() const { return head_dim * dtype_bytes(dtype); }
};

}  // namespace millrace::engine
