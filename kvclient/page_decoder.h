// SPDX-License-Identifier: Apache-2.0
// Decodes pages in 8-bit floats for a destination of another dtype. A value; any thread may use it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/float8_array.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/pull_request.h"

namespace millrace::kvclient {

class PageDecoder {
 public:
  // `request` must have passed check_request; both outlive this.
  PageDecoder(const PullRequest& request, const Manifest& manifest)
      : request_(request), manifest_(manifest) {}

  // Whether pages at their destination differ from how they travel.
  bool decodes() const { return manifest_.is_float8() && request_.float8 == Float8Cache::kDecoded; }
  // Size of an element, and of a page, at its destination.
  int64_t element_bytes() const {
    return decodes() ? dtype_bytes(request_.dtype) : manifest_.element_bytes();
  }
  int64_t page_bytes() const {
    return int64_t{2} * manifest_.layout.page_tokens * manifest_.layout.head_dim * element_bytes();
  }
  // Size of a page as it is stored and travels.
  int64_t stored_bytes() const { return manifest_.page_bytes(); }
  // A checked page in the form of its destination: the page itself, or decoded in `memory`.
  std::span<const std::byte> decode(int32_t layer, int32_t kv_head, std::span<const std::byte> page,
                                    std::vector<std::byte>& memory) const;

 private:
  const PullRequest& request_;
  const Manifest& manifest_;
};

inline std::span<const std::byte> PageDecoder::decode(int32_t layer, int32_t kv_head,
                                                      std::span<const std::byte> page,
                                                      std::vector<std::byte>& memory) const {
  if (!decodes()) return page;
  memory.resize(static_cast<size_t>(page_bytes()));
  const KvScale& scale = manifest_.layout.scales.of(layer, kv_head);
  const auto* codes = reinterpret_cast<const Float8*>(page.data());
  const int64_t half = std::ssize(page) / 2;
  decode_float8(codes, half, scale.k, request_.dtype, memory.data());
  decode_float8(codes + half, half, scale.v, request_.dtype, memory.data() + memory.size() / 2);
  return memory;
}

}  // namespace millrace::kvclient
