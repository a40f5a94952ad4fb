// SPDX-License-Identifier: Apache-2.0
// Pins the prefix of a prompt that runs in a lane: pages of this rank's store, and pages of the
// other context-parallel ranks where they lie in those ranks' pools.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/exchange/prefix.h"
#include "kvstore/cached_pages.h"
#include "worker/peers/page_places.h"
#include "worker/peers/peer_pools.h"
#include "worker/staging/prefix_pins.h"

namespace millrace::worker {

class PeerPins final : public PrefixPins {
 public:
  // The arguments outlive it. `rank`: this rank's number in its row, the context-parallel ranks
  // that store the same heads. `places`: for each rank of the row, the places of its pages of
  // `prefix` (add_places); none are needed for this rank. `peers`: null where `rank` holds all
  // pages.
  PeerPins(kvstore::CachedPages& store, std::string request_id, const engine::PromptPrefix& prefix,
           int rank, const PeerPools* peers, std::vector<std::span<const PagePlace>> places);

  // Whether all pages can be reached. Other ranks' pages that are in no shared pool cannot.
  bool reach_all() const;

  const std::string& request_id() const override { return own_.request_id(); }
  // Other ranks' pages are read in place. Only a matching checksum shows that such a page is still
  // as it was when its owner told its place.
  Result<std::unique_ptr<kvstore::PinnedPages>> pin(int32_t layer, int32_t kv_head,
                                                    std::span<const int64_t> pages) override;

 private:
  const PagePlace& place_of(int owner, int32_t layer, int32_t kv_head, int64_t page) const;

  StorePins own_;
  const kvstore::KvGeometry& geometry_;
  const engine::PromptPrefix& prefix_;
  const int rank_;
  const PeerPools* const peers_;
  const std::vector<std::span<const PagePlace>> places_;
  std::vector<int64_t> index_;      // of each page of the prefix, among its owner's pages
  std::vector<int64_t> num_owned_;  // pages of the prefix, by rank
};

}  // namespace millrace::worker
