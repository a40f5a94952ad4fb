// The pages of one pin_pages call, with the memory of those that had to be read from disk.
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
  // Where the bytes come from, which outlives the pins.
  struct Source {
    const PageIo& io;
    ReadBudget& budget;
    // The page's bytes, if they have been read from disk ahead.
    std::function<std::optional<ReadMemory>(const PageEntry&)> read_ahead;
    // Is told of the pages that a reader has.
    std::function<void(std::span<PageEntry* const>, std::span<const PinnedPage>)> count;
  };

  // The entries, of `table`, are pinned; `unpin` is called when they need not be any more. Under
  // the store's lock: what may change later is copied now.
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
    copies_.clear();  // with the last pin the store may go, and its budget
    unpin_(entries_);
  }

  std::span<const PinnedPage> pages() const override { return pages_; }

  // Outside the store's lock.
  Result<void> load() override;
  void count_copied(std::span<const size_t> pages) override;
  // Those whose bytes are there.
  void count_in_place();
  std::span<PageEntry* const> entries() const { return entries_; }
  PageTable& table() const { return *table_; }

 private:
  void describe();
  // Whether the page had been read ahead.
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
