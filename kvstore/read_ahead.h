// SPDX-License-Identifier: Apache-2.0
// Reads pages on disk into memory of their own before a reader asks for them: while it reads a kv
// head of layer l, the pages of layer l + 1, the best first. If most of the pages that it asks for
// carry the head's mass, only pages that do are read ahead. Nothing in the tiers gives way to them.
//
// A copy is handed to the first reader who asks for the page. Copies that nobody asked for are
// dropped once a reader has passed their layer, when their request ends, and when others need the
// memory and nobody has read the request for kAbandoned.
//
// Threads: step() is for one thread at a time, without the store's lock; everything else is called
// under it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/page_table.h"
#include "kvstore/pages/residency.h"
#include "kvstore/tiers/read_budget.h"

namespace millrace::kvstore {

class ReadAhead {
 public:
  // Longer than a reader takes to read a layer from disk.
  static constexpr Duration kAbandoned = std::chrono::seconds(5);

  // All arguments outlive it; `mutex` is the store's lock.
  ReadAhead(const PageIo& io, Residency& residency, std::mutex& mutex, const Clock& clock,
            int64_t num_bytes);

  // A reader has received these pages, of one layer and kv head.
  void follow(PageTable& table, std::span<PageEntry* const> pages);
  // The copy of a page, if there is one.
  std::optional<ReadMemory> take(const PageTable& table, const PageEntry& page);
  void forget(const PageTable& table);
  bool has_targets() const { return !targets_.empty(); }

  // Reads one page. False if there is none to read, or no memory to read it into.
  bool step();

  int64_t pages_read() const { return pages_read_; }
  int64_t pages_taken() const { return pages_taken_; }

 private:
  // Of a layer and kv head.
  using Key = std::tuple<const PageTable*, int32_t, int32_t>;  // table, kv head, layer
  struct Target {
    std::shared_ptr<PageTable> table;
    PageKey head;
    std::vector<PageEntry*> pages;  // to read; the next one is last
  };
  // What reading ahead last began with for a kv head.
  struct Followed {
    int32_t layer = -1;
    bool all = false;  // not only pages that carry mass
  };
  struct Reader {
    TimePoint last;
    std::map<int32_t, Followed> heads;
  };

  static Key key_of(const PageTable& table, const PageKey& head) {
    return {&table, head.kv_head, head.layer};
  }
  static std::vector<PageEntry*> pages_to_read(std::span<PageEntry* const> head, bool all);
  void pass(const PageTable& table, const PageKey& head);
  bool has_copy(const PageTable& table, const PageEntry& page) const;
  bool drop_abandoned(const PageTable& table);
  // The next page to read; its target is the first one.
  PageEntry* next_page();

  const PageIo& io_;
  Residency& residency_;
  std::mutex& mutex_;
  const Clock& clock_;
  ReadBudget budget_;
  std::deque<Target> targets_;
  std::unordered_map<const PageTable*, Reader> readers_;
  std::map<Key, std::unordered_map<const PageEntry*, ReadMemory>> copies_;
  int64_t pages_read_ = 0;
  int64_t pages_taken_ = 0;
};

}  // namespace millrace::kvstore
