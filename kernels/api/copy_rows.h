// SPDX-License-Identifier: Apache-2.0
// A strided copy: rows of a matrix from one pitch to another.
#pragma once

#include <cstdint>

namespace millrace::kernels {

// Row r goes from source + r * source_stride_bytes to destination + r * destination_stride_bytes.
// Either side may be host or device memory; see Device::copy. Rows do not overlap.
struct CopyRowsParams {
  void* destination = nullptr;
  int64_t destination_stride_bytes = 0;
  const void* source = nullptr;
  int64_t source_stride_bytes = 0;
  int64_t row_bytes = 0;
  int64_t num_rows = 0;
};

// The same between host addresses.
void copy_host_rows(const CopyRowsParams& params);

}  // namespace millrace::kernels
