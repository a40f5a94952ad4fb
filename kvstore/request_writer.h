// SPDX-License-Identifier: Apache-2.0
// What computes a prompt calls of the KV store: room for the prompt's pages, their bytes and scores,
// and the lease at the end. Threads and errors: kvstore/kv_store.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "kvstore/pages/cache_log.h"
#include "kvstore/pages/page.h"
#include "kvstore/tiers/device_halves.h"

namespace millrace::kvstore {

// Pages of one request per tier, as placed by seal(); without the pages that the request dropped.
struct Placement {
  PerTier<int64_t> pages;
};

class RequestWriter {
 public:
  virtual ~RequestWriter() = default;

  virtual const KvGeometry& geometry() const = 0;

  // `pages`: the prompt's pages that this rank is to compute, ascending, the same for every layer
  // and kv head. `prefix`: remembered pages before these, ascending. The request holds them as if
  // it had written them; kUnavailable names the first that is gone. If room is lacking, idle
  // remembered pages give way.
  virtual Result<void> begin_request(const std::string& request_id, int64_t num_tokens,
                                     std::span<const int64_t> pages,
                                     std::span<const CachedPage> prefix) = 0;
  Result<void> begin_request(const std::string& request_id, int64_t num_tokens,
                             std::span<const int64_t> pages) {
    return begin_request(request_id, num_tokens, pages, {});
  }
  // Opens a request that is being written: from now on, whoever names `lease_id` may read its
  // complete pages. That lease has no end until seal() gives it one; abort() ends it.
  virtual Result<void> open(const std::string& request_id, const std::string& lease_id) = 0;
  // Writes pages of one layer and kv head, by ascending number. `kv`: geometry.page_bytes() for
  // each, one after the other; copied. `on_device`: where the same pages lie in the memory of the
  // rank's device, if they do; those that get a slot there are copied on the device. Each page of
  // the request is written exactly once. After an error, the pages that could not be copied, which
  // may be all of them, are still to be written.
  virtual Result<void> write_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                                   std::span<const int64_t> pages, std::span<const std::byte> kv,
                                   const PageDigest& digests, const DeviceHalves& on_device) = 0;
  Result<void> write_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                           std::span<const int64_t> pages, std::span<const std::byte> kv,
                           const PageDigest& digests) {
    return write_pages(request_id, layer, kv_head, pages, kv, digests, {});
  }
  Result<void> write_page(const std::string& request_id, const PageKey& key,
                          std::span<const std::byte> kv, const PageDigest& digest) {
    return write_pages(request_id, key.layer, key.kv_head, std::span(&key.page, 1), kv, digest);
  }
  // Scores of the rank's pages of one layer and kv head, in the order given to begin_request, the
  // prefix first. Pages that are written become complete with it. A page of the prefix keeps the
  // worth that it has for earlier requests, unless this one needs it much more (displaces(),
  // kvstore/rules/placement.h).
  virtual Result<void> set_scores(const std::string& request_id, int32_t layer, int32_t kv_head,
                                  std::span<const float> scores) = 0;
  // The same for all layers and kv heads, [layers, kv heads, pages], of a request whose only pages
  // on this rank are those that it began with. The pages keep the worth that they have for earlier
  // requests.
  virtual Result<void> set_prefix_scores(const std::string& request_id,
                                         std::span<const float> scores) = 0;
  // For a request that is written and not open. Removes these pages of one layer and kv head, which
  // ascend, from the request and frees their slots, except those of pages that others hold too.
  // Readers get kNotFound for them; scores() still says what they were worth. Such a request is not
  // remembered.
  virtual Result<void> drop_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                                  std::span<const int64_t> pages) = 0;
  // All pages must be written. From now until the lease ends, whoever names `lease_id` may read the
  // request. If the request was opened, `lease_id` must be the one it was opened with.
  virtual Result<Placement> seal(const std::string& request_id, const std::string& lease_id,
                                 Duration lease) = 0;
  // Keeps pages of a sealed request under these keys after the request is gone. If a key is known
  // already, the page that has it stays, unless nobody holds it and more of it is on disk. Returns
  // how many pages of the prompt are new. `cost`: what the prompt takes to compute per page of all
  // layers and heads, where 1 is the cost of a page with nothing before it. The worth of all its
  // remembered pages follows from it (kvstore/rules/retention.h). `prompt`: what the log is told,
  // if anything. kNotFound: the request is gone, or a page is not part of it. kInvalidArgument: it
  // has dropped pages.
  virtual Result<int64_t> remember(const std::string& request_id, std::span<const CachedPage> pages,
                                   double cost, std::shared_ptr<const CachedPrompt> prompt) = 0;
  Result<int64_t> remember(const std::string& request_id, std::span<const CachedPage> pages,
                           double cost = 1) {
    return remember(request_id, pages, cost, nullptr);
  }
  // Forgets a request in any state (cancelled, failed). Pinned pages stay valid until unpinned, and
  // what the store remembers stays.
  virtual void abort(const std::string& request_id) = 0;
};

}  // namespace millrace::kvstore
