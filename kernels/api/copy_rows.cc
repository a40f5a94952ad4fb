// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/copy_rows.h"

#include <cstddef>
#include <cstring>

namespace millrace::kernels {

void copy_host_rows(const CopyRowsParams& params) {
  auto* to = static_cast<std::byte*>(params.destination);
  const auto* from = static_cast<const std::byte*>(params.source);
  for (int64_t r = 0; r < params.num_rows; ++r) {
    std::memcpy(to, from, static_cast<size_t>(params.row_bytes));
    to += params.destination_stride_bytes;
    from += params.source_stride_bytes;
  }
}

}  // namespace millrace::kernels
