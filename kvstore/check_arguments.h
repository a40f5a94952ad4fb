// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of KvStore calls. An error is kInvalidArgument, with what, where and the
// numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/result.h"
#include "kvstore/kv_store.h"

namespace millrace::kvstore {

inline constexpr size_t kMaxIdBytes = 256;

// `pages` must ascend and be pages of the prompt.
Result<void> check_request(const std::string& request_id, int64_t num_tokens,
                           std::span<const int64_t> pages, const KvGeometry& geometry);
// `prefix` must ascend and lie before all of `pages`.
Result<void> check_prefix(const std::string& request_id, int64_t num_tokens,
                          std::span<const int64_t> pages, std::span<const CachedPage> prefix,
                          const KvGeometry& geometry);
Result<void> check_pages(const std::string& request_id, int64_t num_pages,
                         std::span<const std::byte> kv, const PageDigest& digests,
                         const KvGeometry& geometry);
// There must be a finite score, not below 0, for each of num_pages pages.
Result<void> check_scores(const std::string& request_id, int32_t layer, int32_t kv_head,
                          std::span<const float> scores, int64_t num_pages);

}  // namespace millrace::kvstore
