// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/scatter_pages.h"

#include <cstring>

namespace millrace::kernels {

void scatter_host_pages(const ScatterPagesParams& params) {
  const auto half_bytes = static_cast<size_t>(params.page_bytes / 2);
  for (size_t i = 0; i < params.pages.size(); ++i) {
    const size_t row = i * half_bytes;
    std::memcpy(params.pages[i], static_cast<const std::byte*>(params.k) + row, half_bytes);
    std::memcpy(params.pages[i] + half_bytes, static_cast<const std::byte*>(params.v) + row,
                half_bytes);
  }
}

}  // namespace millrace::kernels
