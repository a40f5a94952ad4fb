// SPDX-License-Identifier: Apache-2.0
#include "kvstore/check_arguments.h"

#include <cmath>

#include "common/units.h"

namespace millrace::kvstore {

Result<void> check_request(const std::string& request_id, int64_t num_tokens,
                           std::span<const int64_t> pages, const KvGeometry& geometry) {
  if (request_id.empty() || request_id.size() > kMaxIdBytes) {
    return error(Errc::kInvalidArgument, "request id has {} bytes; must be 1 to {}",
                 request_id.size(), kMaxIdBytes);
  }
  if (num_tokens <= 0) {
    return error(Errc::kInvalidArgument, "request '{}' has {} tokens; must be at least 1",
                 request_id, num_tokens);
  }
  const int64_t num_prompt_pages = ceil_div(num_tokens, geometry.page_tokens);
  int64_t previous = -1;
  for (const int64_t page : pages) {
    if (page <= previous || page >= num_prompt_pages) {
      return error(Errc::kInvalidArgument,
                   "request '{}': page {} after {}; pages must ascend and be below {}", request_id,
                   page, previous, num_prompt_pages);
    }
    previous = page;
  }
  return {};
}

Result<void> check_prefix(const std::string& request_id, int64_t num_tokens,
                          std::span<const int64_t> pages, std::span<const CachedPage> prefix,
                          const KvGeometry& geometry) {
  const int64_t end = pages.empty() ? num_tokens / geometry.page_tokens : pages.front();
  int64_t previous = -1;
  for (const CachedPage& cached : prefix) {
    if (cached.page <= previous || cached.page >= end) {
      return error(Errc::kInvalidArgument,
                   "request '{}': page {} of the prefix after {}; must ascend and be below {}",
                   request_id, cached.page, previous, end);
    }
    previous = cached.page;
  }
  return {};
}

Result<void> check_pages(const std::string& request_id, int64_t num_pages,
                         std::span<const std::byte> kv, const PageDigest& digests,
                         const KvGeometry& geometry) {
  const int64_t num_values = num_pages * geometry.head_dim;
  if (std::ssize(kv) == num_pages * geometry.page_bytes() &&
      std::ssize(digests.min) == num_values && std::ssize(digests.max) == num_values &&
      std::ssize(digests.radius) == num_values) {
    return {};
  }
  return error(Errc::kInvalidArgument,
               "request '{}': {} pages of {} bytes with digests of {}, {}, {} values; must be {} "
               "and {}",
               request_id, num_pages, kv.size(), digests.min.size(), digests.max.size(),
               digests.radius.size(), num_pages * geometry.page_bytes(), num_values);
}

Result<void> check_scores(const std::string& request_id, int32_t layer, int32_t kv_head,
                          std::span<const float> scores, int64_t num_pages) {
  if (std::ssize(scores) != num_pages) {
    return error(Errc::kInvalidArgument, "request '{}': layer {} kv head {}: {} scores of {} pages",
                 request_id, layer, kv_head, scores.size(), num_pages);
  }
  for (const float score : scores) {
    if (std::isfinite(score) && score >= 0) continue;
    return error(
        Errc::kInvalidArgument,
        "request '{}': layer {} kv head {} has a score of {}; must be finite and at least 0",
        request_id, layer, kv_head, score);
  }
  return {};
}

}  // namespace millrace::kvstore
