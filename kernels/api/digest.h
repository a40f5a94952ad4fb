// SPDX-License-Identifier: Apache-2.0
// Per-page summaries of K that rank pages without reading them.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace millrace::kernels {

// min/max: Quest's bounding box. centre/radius: ArkVale's cuboid-mean, centre = (min + max) / 2,
// radius = mean |k - centre|.
struct PageDigestParams {
  const void* k = nullptr;  // [num_tokens, head_dim], consecutive tokens of one kv head; page p =
                            // rows [64 p, 64 p + 64)
  DType dtype = DType::kFloat32;
  int64_t num_tokens = 0;
  int32_t head_dim = 0;
  float* min = nullptr;     // [num_pages, head_dim]
  float* max = nullptr;     // [num_pages, head_dim]
  float* radius = nullptr;  // [num_pages, head_dim]; the centre follows from min and max
};

}  // namespace millrace::kernels
