// SPDX-License-Identifier: Apache-2.0
// The log of what a store has cached: which pages came, which went, and which prompts left them, in
// this order. The store alone appends to it. Whoever tells others what is cached (routers, the
// coordinator, the next start) reads on from where it stopped, and so never has to look through the
// store.
//
// A page is cached while it is in the tiers or kept on disk. Moves between the two are not logged.
//
// Bounded: the latest changes are there, up to kMostPages pages. A reader that stopped before them
// is given all cached pages instead (CacheNews::is_whole).
// Not thread-safe: used under the store's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/content/page_keys.h"

namespace millrace::kvstore {

// A prompt whose first pages are cached, for the readers of the log; the store passes it on.
struct CachedPrompt {
  std::vector<PageContentKey> page_keys;
  std::vector<int> owners;         // the context-parallel rank that has each page
  std::vector<int32_t> token_ids;  // of the whole prompt
  std::string cache_salt;          // the request's
  // The names of its beginnings (common/content/prefix_keys.h), and the plan that it asked for.
  uint64_t origin = 0;
  uint64_t tenant = 0;
  std::string head_plan;
  double min_recall = 0;
  bool impure = false;  // the plan is not prefix-pure
};

struct CacheChange {
  enum class Kind : uint8_t { kAdded, kGone, kPrompt };
  Kind kind = Kind::kAdded;
  PageContentKey key{};                                  // of kAdded and kGone
  std::shared_ptr<const CachedPrompt> prompt = nullptr;  // of kPrompt, after its pages were added
};

struct CacheNews {
  std::vector<CacheChange> changes;
  bool is_whole = false;  // they are all the cached pages, and nothing else is cached
  int64_t end = 0;        // where to read on
};

class CacheLog {
 public:
  static constexpr int64_t kMostPages = 65'536;
  // Whether a page is kept on disk, or about to be.
  using IsKept = std::function<bool(const PageContentKey&)>;

  explicit CacheLog(IsKept is_kept = nullptr, int64_t most_pages = kMostPages)
      : is_kept_(std::move(is_kept)), most_pages_(most_pages) {}

  // A page has come into the tiers.
  void entered(const PageContentKey& key) { append_unless_kept(CacheChange::Kind::kAdded, key); }
  // A page is no longer in the tiers, or no longer kept and not in the tiers, or did not get there.
  void left(const PageContentKey& key) { append_unless_kept(CacheChange::Kind::kGone, key); }
  void remembered(std::shared_ptr<const CachedPrompt> prompt);

  // The changes from `from` on; none if some of them are gone from the log.
  std::optional<CacheNews> read(int64_t from) const;
  int64_t end() const { return first_ + std::ssize(changes_); }

 private:
  void append_unless_kept(CacheChange::Kind kind, const PageContentKey& key);
  void append(CacheChange change);

  const IsKept is_kept_;
  const int64_t most_pages_;
  std::deque<CacheChange> changes_;
  int64_t first_ = 1;      // place of the first of them
  int64_t num_pages_ = 0;  // that they name
};

}  // namespace millrace::kvstore
