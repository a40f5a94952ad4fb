// Pages from the ranks that hold a cache, whatever tier they are in: one pull for each batch.
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
  RankPages(kvclient::PullClient& client, std::shared_ptr<const kvclient::Manifest> manifest)
      : client_(client), manifest_(std::move(manifest)) {}

  Result<void> fetch(std::span<const kvclient::NamedPage> pages, FetchUrgency urgency,
                     Deadline deadline) override;
  // Of all batches so far; seconds are a sum.
  kvclient::PullStats stats() const;

 private:
  kvclient::PullClient& client_;
  const std::shared_ptr<const kvclient::Manifest> manifest_;
  mutable std::mutex mutex_;
  kvclient::PullStats stats_;
};

}  // namespace millrace::decode
