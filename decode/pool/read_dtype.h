// SPDX-License-Identifier: Apache-2.0
// The dtype in which this node reads a cache on a CPU: the cache's own, or float32 for 8-bit
// floats, because the digests of their pages bound the decoded values in float32. The manifest must
// have passed check_manifest.
#pragma once

#include "common/dtype.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::decode {

inline DType read_dtype(const kvclient::Manifest& manifest) {
  return find_dtype(manifest.layout.dtype).value_or(DType::kFloat32);
}

// Size of a page in this dtype.
inline int64_t read_page_bytes(const kvclient::Manifest& manifest) {
  return int64_t{2} * manifest.layout.page_tokens * manifest.layout.head_dim *
         dtype_bytes(read_dtype(manifest));
}

}  // namespace millrace::decode
