// What this node reads a cache as on a CPU: its own dtype; of 8-bit floats float32, in which what they stand
// for is what the digests of their pages bound. The manifest must have passed check_manifest.
#pragma once

#include "common/dtype.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::decode {

inline DType read_dtype(const kvclient::Manifest& manifest) {
  return find_dtype(manifest.layout.dtype).value_or(DType::kFloat32);
}

// Of a page.
inline int64_t read_page_bytes(const kvclient::Manifest& manifest) {
  return int64_t{2} * manifest.layout.page_tokens * manifest.layout.head_dim *
         dtype_bytes(read_dtype(manifest));
}

}  // namespace millrace::decode
