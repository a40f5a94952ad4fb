#include "kernels/pages/device_pages.h"

#include "common/page_tokens.h"
#include "common/units.h"

namespace millrace::kernels {

int64_t DevicePagesShape::num_pages() const {
  return ceil_div(num_tokens, kPageTokens);
}

int64_t DevicePagesShape::page_bytes() const {
  return 2 * kPageTokens * head_dim * dtype_bytes(dtype);
}

}  // namespace millrace::kernels
