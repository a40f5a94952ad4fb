// SPDX-License-Identifier: Apache-2.0
#include "worker/peers/peer_pins.h"

#include <algorithm>
#include <utility>

namespace millrace::worker {

namespace {

// This rank's pages and other ranks' pages, in the order in which they were asked for.
class MixedPages final : public kvstore::PinnedPages {
 public:
  // `own`: pages of this rank's store, or null. `places[i]`: the index in `pages` of the i-th of
  // them.
  MixedPages(std::unique_ptr<kvstore::PinnedPages> own, std::vector<size_t> places,
             std::vector<kvstore::PinnedPage> pages)
      : own_(std::move(own)), places_(std::move(places)), pages_(std::move(pages)) {
    take_own();
  }

  std::span<const kvstore::PinnedPage> pages() const override { return pages_; }
  Result<void> load() override {
    if (own_ == nullptr) return {};
    MR_RETURN_IF_ERROR(own_->load());
    take_own();
    return {};
  }
  // Reading a prefix for a prompt does not count as a pull.
  void count_copied(std::span<const size_t> /*pages*/) override {}

 private:
  void take_own() {
    for (size_t i = 0; i < places_.size(); ++i) pages_[places_[i]] = own_->pages()[i];
  }

  std::unique_ptr<kvstore::PinnedPages> own_;
  std::vector<size_t> places_;
  std::vector<kvstore::PinnedPage> pages_;
};

}  // namespace

PeerPins::PeerPins(kvstore::CachedPages& store, std::string request_id,
                   const engine::PromptPrefix& prefix, int rank, const PeerPools* peers,
                   std::vector<std::span<const PagePlace>> places)
    : own_(store, std::move(request_id)),
      geometry_(store.geometry()),
      prefix_(prefix),
      rank_(rank),
      peers_(peers),
      places_(std::move(places)),
      num_owned_(places_.size()) {
  for (const int owner : prefix_.owners) {
    index_.push_back(num_owned_[static_cast<size_t>(owner)]++);
  }
}

bool PeerPins::reach_all() const {
  const int64_t rows = int64_t{geometry_.num_layers} * geometry_.num_kv_heads;
  for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
    const int64_t num_owned = num_owned_[static_cast<size_t>(rank)];
    if (rank == rank_ || num_owned == 0) continue;
    const auto& places = places_[static_cast<size_t>(rank)];
    if (peers_ == nullptr || std::ssize(places) != rows * num_owned) return false;
    const bool all = std::ranges::all_of(places, [&](const PagePlace& page) {
      return !peers_->bytes(rank, page.place(), geometry_.page_bytes()).empty();
    });
    if (!all) return false;
  }
  return true;
}

const PagePlace& PeerPins::place_of(int owner, int32_t layer, int32_t kv_head, int64_t page) const {
  const int64_t num_rows = int64_t{geometry_.num_layers} * geometry_.num_kv_heads;
  const int64_t row = int64_t{layer} * geometry_.num_kv_heads + kv_head - geometry_.first_kv_head;
  const int64_t index = index_[static_cast<size_t>(page)] * num_rows + row;
  return places_[static_cast<size_t>(owner)][static_cast<size_t>(index)];
}

Result<std::unique_ptr<kvstore::PinnedPages>> PeerPins::pin(int32_t layer, int32_t kv_head,
                                                            std::span<const int64_t> pages) {
  std::vector<kvstore::PinnedPage> all(pages.size());
  std::vector<int64_t> own_pages;
  std::vector<size_t> own_places;
  for (size_t i = 0; i < pages.size(); ++i) {
    const int owner = prefix_.owners[static_cast<size_t>(pages[i])];
    if (owner == rank_) {
      own_pages.push_back(pages[i]);
      own_places.push_back(i);
      continue;
    }
    const PagePlace& page = place_of(owner, layer, kv_head, pages[i]);
    all[i] = {.bytes = peers_->bytes(owner, page.place(), geometry_.page_bytes()),
              .loose_bytes = {},
              .digest = {},
              .checksum = page.checksum(),
              .tier = Tier::kHost};
  }
  std::unique_ptr<kvstore::PinnedPages> own;
  if (!own_pages.empty()) {
    MR_ASSIGN_OR_RETURN(own, own_.pin(layer, kv_head, own_pages));
  }
  return std::unique_ptr<kvstore::PinnedPages>(
      std::make_unique<MixedPages>(std::move(own), std::move(own_places), std::move(all)));
}

}  // namespace millrace::worker
