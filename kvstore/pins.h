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
  // Where the bytes come from, which outlives the pins; `count` is told of pages that were read.
  struct Source {
    const PageIo& io;
    ReadBudget& budget;
    std::function<void(std::span<const PinnedPage>)> count;
  };

  // The entries, of `table`, are pinned; `unpin` is called when they need not be any more. Under
  // the store's lock: what may change later is copied now.
  Pins(Source source, std::shared_ptr<PageTable> table, std::span<PageEntry> entries,
       std::function<void()> unpin)
      : source_(std::move(source)),
        table_(std::move(table)),
        entries_(entries),
        unpin_(std::move(unpin)),
        pages_(entries.size()) {
    describe();
  }
  ~Pins() override {
    read_ = {};  // with the last pin the store may go, and its budget
    unpin_();
  }

  std::span<const PinnedPage> pages() const override { return pages_; }

  Result<void> load() override;

 private:
  void describe();

  const Source source_;
  std::shared_ptr<PageTable> table_;
  std::span<PageEntry> entries_;
  std::function<void()> unpin_;
  std::vector<int32_t> slots_;
  std::vector<PinnedPage> pages_;
  ReadMemory read_;
};

}  // namespace millrace::kvstore
