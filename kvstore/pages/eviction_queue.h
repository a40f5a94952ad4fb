// SPDX-License-Identifier: Apache-2.0
// Pages in order of worth, either the least or the best first: an indexed binary heap of fixed
// capacity. An entry knows its place (queue_index), so any entry can leave or change worth in O(log
// n), and nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "kvstore/pages/page_column.h"

namespace millrace::kvstore {

// Whether `a` is worth less than `b`: by priority, and between equals the older request is worth
// less.
bool worth_less(const PageEntry& a, const PageEntry& b);

class EvictionQueue {
 public:
  enum class First : uint8_t { kLeast, kBest };
  explicit EvictionQueue(int64_t capacity, First first = First::kLeast) : first_(first) {
    heap_.reserve(static_cast<size_t>(capacity));
  }

  bool empty() const { return heap_.empty(); }
  int64_t size() const { return static_cast<int64_t>(heap_.size()); }

  void insert(PageEntry& page);
  void remove(PageEntry& page);
  // To be called after the priority of a page in this queue has changed.
  void restore_order(PageEntry& page);

  PageEntry& front() const { return *heap_.front(); }
  // Some page from the half at the other end: a leaf comes after its ancestors.
  PageEntry& back() const { return *heap_.back(); }

 private:
  bool before(const PageEntry& a, const PageEntry& b) const {
    return first_ == First::kLeast ? worth_less(a, b) : worth_less(b, a);
  }
  void put(size_t index, PageEntry* page);
  void sift_up(size_t index);
  void sift_down(size_t index);

  First first_;
  std::vector<PageEntry*> heap_;
};

}  // namespace millrace::kvstore
