// SPDX-License-Identifier: Apache-2.0
// The pages of one pin_pages call, and the memory of those that had to be read from disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvstore/kv_store.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/page_table.h"
#include "kvstore/tiers/read_budget.h"

namespace millrace::kvstore {

class Pins final : public PinnedPages {
 public:
  // Where the bytes come from; outlives the pins.
  struct Source {
    const PageIo& io;
    ReadBudget& budget;
    // The page's bytes, if they were read ahead from disk.
    std::function<std::optional<ReadMemory>(const PageEntry&)> read_ahead;
    // Told which pages a reader has received.
    std::function<void(std::span<PageEntry* const>, std::span<const PinnedPage>)> count;
  };

  // Under the store's lock; copies what may change later. The entries, of `table`, are pinned
  // already; `unpin` is called when they no longer need to be.
  Pins(Source source, std::shared_ptr<PageTable> table, std::vector<PageEntry*> entries,
       std::function<void(std::span<PageEntry* const>)> unpin)
      : source_(std::move(source)),
        table_(std::move(table)),
        entries_(std::move(entries)),
        unpin_(std::move(unpin)),
        pages_(entries_.size()) {
    describe();
  }
  ~Pins() override {
    read_ = {};
    copies_.clear();  // after the last pin the store and its budget may go
    unpin_(entries_);
  }

  std::span<const PinnedPage> pages() const override { return pages_; }

  // Outside the store's lock.
  Result<void> load() override;
  void count_copied(std::span<const size_t> pages) override;
  // Counts the pages whose bytes are there.
  void count_in_place();
  std::span<PageEntry* const> entries() const { return entries_; }
  PageTable& table() const { return *table_; }

 private:
  void describe();
  // Returns whether the page had been read ahead.
  bool take_copy(size_t page);

  const Source source_;
  std::shared_ptr<PageTable> table_;
  std::vector<PageEntry*> entries_;
  std::function<void(std::span<PageEntry* const>)> unpin_;
  std::vector<int32_t> slots_;
  std::vector<PinnedPage> pages_;
  ReadMemory read_;
  std::vector<ReadMemory> copies_;
};

}  // namespace millrace::kvstore
