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
#include "kvstore/tiers/read_budget.h"

namespace millrace::kvstore {

class Pins final : public PinnedPages {
 public:
  // The entries, of `table`, are pinned; `unpin` is called when they need not be any more.
  Pins(std::shared_ptr<PageTable> table, std::vector<PageEntry*> entries,
       std::function<void(std::span<PageEntry* const>)> unpin)
      : table_(std::move(table)),
        entries_(std::move(entries)),
        unpin_(std::move(unpin)),
        pages_(entries_.size()) {}
  ~Pins() override {
    read_ = {};  // with the last pin the store may go, and its budget
    unpin_(entries_);
  }

  std::span<const PinnedPage> pages() const override { return pages_; }

  // Under the store's lock: what may change later is copied now.
  void describe();
  // Outside the lock.
  Result<void> load(const PageIo& io, ReadBudget& budget);

 private:
  std::shared_ptr<PageTable> table_;
  std::vector<PageEntry*> entries_;
  std::function<void(std::span<PageEntry* const>)> unpin_;
  std::vector<int32_t> slots_;
  std::vector<PinnedPage> pages_;
  ReadMemory read_;
};

}  // namespace millrace::kvstore
