// SPDX-License-Identifier: Apache-2.0
// What a group tells others of its cached pages, on one rank. Each rank reads the log of its store
// (kvstore/pages/cache_log.h), and says which pages it has lost. From that, from the prompts in its
// own log, and from the pages that it finds kept at its start, rank 0 knows what the group has
// (HeldPages). It publishes events, writes the journal for the next start, and returns what the
// coordinator is to be told. Used by the engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "kvstore/cached_pages.h"
#include "protocol/control_messages.pb.h"
#include "worker/events/event_publisher.h"
#include "worker/events/held_pages.h"
#include "worker/events/page_journal.h"

namespace millrace::worker {

class GroupCache {
 public:
  // `store` outlives it. `publisher`: rank 0's, outlives it too; null on other ranks, and where no
  // events are made.
  GroupCache(kvstore::CachedPages& store, int num_tp_ranks, EventPublisher* publisher);

  // The pages that an earlier run of the group left (`owners` as in HeldPages::restore). Rank 0
  // only, at the start, where pages are kept. From here on, the journal is written.
  protocol::CachedPrefixes start_with(JournalFile::Contents contents,
                                      std::span<const std::vector<int>> owners,
                                      JournalFile journal);
  bool makes_events() const { return publisher_ != nullptr; }
  size_t most_kept_pages() const;

  // Reads on in the log of this rank's store. Where prompts have left pages, all ranks should have
  // left theirs. Returns, on rank 0, the beginnings of prompts that the group has; not all are new.
  protocol::CachedPrefixes read();
  // What this rank has lost since the last call, by what read() has read.
  LostPages take_lost();
  // Rank 0 only: what take_lost() returned on each rank, after read(). Returns the beginnings that
  // the group has no longer.
  protocol::CachedPrefixes lost(std::span<const LostPages> by_rank);

 private:
  protocol::CachedPrefixes report_of(HeldChange change, const protocol::PlanOrigin* origin);

  kvstore::CachedPages& store_;
  int64_t read_until_;  // in the store's log
  std::unordered_set<BlockHash> lost_;
  bool is_left_ = false;  // lost_ are all pages that the rank has left
  // Rank 0 only:
  HeldPages held_;
  EventPublisher* publisher_;
  std::optional<PageJournal> journal_;
};

}  // namespace millrace::worker
