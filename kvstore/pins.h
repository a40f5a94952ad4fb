// The pages of one pin_pages call, with the memory of those that had to be read from disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvstore/kv_store.h"
#include "kvstore/page_io.h"
#include "kvstore/page_table.h"
#include "kvstore/read_ahead.h"
#include "kvstore/tiers/read_budget.h"

namespace millrace::kvstore {

class Pins final : public PinnedPages {
 public:
  // The entries, of `table`, are pinned; `unpin` is called when they need not be any more.
  Pins(std::shared_ptr<PageTable> table, std::vector<PageEntry*> entries, int64_t page_bytes,
       std::function<void(std::span<PageEntry* const>)> unpin)
      : table_(std::move(table)),
        entries_(std::move(entries)),
        page_bytes_(static_cast<size_t>(page_bytes)),
        unpin_(std::move(unpin)),
        pages_(entries_.size()) {}
  ~Pins() override {
    read_ = {};
    copies_.clear();  // with the last pin the store may go, and its budget
    unpin_(entries_);
  }

  std::span<const PinnedPage> pages() const override { return pages_; }

  // Under the store's lock: what may change later is copied now.
  void describe();
  // Under the store's lock too: takes over what has been read ahead of those on disk.
  void take_copies(ReadAhead& read_ahead);
  std::span<PageEntry* const> entries() const { return entries_; }
  // Outside the lock.
  Result<void> load(const PageIo& io, ReadBudget& budget);

 private:
  std::shared_ptr<PageTable> table_;
  std::vector<PageEntry*> entries_;
  size_t page_bytes_;
  std::function<void(std::span<PageEntry* const>)> unpin_;
  std::vector<int32_t> slots_;
  std::vector<PinnedPage> pages_;
  ReadMemory read_;
  std::vector<ReadMemory> copies_;
};

}  // namespace millrace::kvstore
