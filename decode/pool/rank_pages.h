// SPDX-License-Identifier: Apache-2.0
// Pages from the ranks that hold a cache, in whatever tier they are: one pull for each batch. Pages
// in 8-bit floats come decoded to read_dtype, or as codes.
#pragma once

#include <memory>
#include <mutex>

#include "decode/pool/page_source.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/pull_client.h"
#include "kvclient/pull_stats.h"

namespace millrace::decode {

class RankPages final : public PageSource {
 public:
  // `client` outlives it. The manifest must have passed check_manifest.
  RankPages(kvclient::PullClient& client, std::shared_ptr<const kvclient::Manifest> manifest,
            bool codes = false)
      : client_(client),
        manifest_(std::move(manifest)),
        float8_(codes && manifest_->is_float8() ? kvclient::Float8Cache::kCodes
                                                : kvclient::Float8Cache::kDecoded) {}

  Result<void> fetch(std::span<const kvclient::NamedPage> pages, FetchUrgency urgency,
                     Deadline deadline) override;
  // For all batches so far; seconds are summed.
  kvclient::PullStats stats() const;

 private:
  kvclient::PullClient& client_;
  const std::shared_ptr<const kvclient::Manifest> manifest_;
  const kvclient::Float8Cache float8_;
  mutable std::mutex mutex_;
  kvclient::PullStats stats_;
};

}  // namespace millrace::decode
