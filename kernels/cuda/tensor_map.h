// Descriptions of tensors for the copy engine.
#pragma once

#include <cuda.h>

#include "kernels/api/attention.h"

namespace millrace::kernels::cuda {

// `data` is the slab's K or its V: boxes of `box_keys` keys by 64 columns of one kv head, in the
// 128-byte swizzle that the tensor cores read. Keys past num_tokens read as zeros.
CUtensorMap key_tensor_map(const void* data, const KvSlab& slab, int box_keys = kPageTokens);

}  // namespace millrace::kernels::cuda
