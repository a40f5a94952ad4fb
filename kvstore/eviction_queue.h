// Pages on the device in order of worth, the least first: an indexed binary heap of fixed capacity.
// An entry knows its place (queue_index), so any of them can leave or change worth in O(log n), and
// nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "kvstore/page_table.h"

namespace millrace::kvstore {

// Worth less on the device: by priority, and between equals the older request.
bool worth_less(const PageEntry& a, const PageEntry& b);

class EvictionQueue {
 public:
  explicit EvictionQueue(int64_t capacity) { heap_.reserve(static_cast<size_t>(capacity)); }

  bool empty() const { return heap_.empty(); }
  int64_t size() const { return static_cast<int64_t>(heap_.size()); }

  void insert(PageEntry& page);
  void remove(PageEntry& page);
  // After the priority of a page in this queue changed.
  void restore_order(PageEntry& page);

  PageEntry& min() const { return *heap_.front(); }
  // Some page from the upper half: a leaf is worth no less than its ancestors.
  PageEntry& high() const { return *heap_.back(); }

 private:
  void put(size_t index, PageEntry* page);
  void sift_up(size_t index);
  void sift_down(size_t index);

  std::vector<PageEntry*> heap_;
};

}  // namespace millrace::kvstore
