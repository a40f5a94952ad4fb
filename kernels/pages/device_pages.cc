// SPDX-License-Identifier: Apache-2.0
#include "kernels/pages/device_pages.h"

#include "common/float8.h"
#include "common/page_tokens.h"
#include "common/units.h"

namespace millrace::kernels {

int64_t DevicePagesShape::num_pages() const {
  return ceil_div(num_tokens, kPageTokens);
}

int64_t DevicePagesShape::kept_pages() const {
  if (kept == nullptr) return all_pages();
  int64_t count = 0;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t h = 0; h < num_kv_heads; ++h) {
      count += std::ssize(kept->pages(layer, first_kv_head + h));
    }
  }
  return count;
}

int64_t DevicePagesShape::page_bytes() const {
  const int64_t element_bytes = float8 != nullptr ? int64_t{sizeof(Float8)} : dtype_bytes(dtype);
  return 2 * kPageTokens * head_dim * element_bytes;
}

}  // namespace millrace::kernels
