// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/eviction_queue.h"

#include "common/check.h"

namespace millrace::kvstore {

bool worth_less(const PageEntry& a, const PageEntry& b) {
  if (a.priority < b.priority) return true;
  if (b.priority < a.priority) return false;
  return a.column->sequence() < b.column->sequence();
}

void EvictionQueue::insert(PageEntry& page) {
  MR_CHECK(page.queue_index < 0, "page is in a queue at {}", page.queue_index);
  MR_CHECK(heap_.size() < heap_.capacity(), "queue of {} is full", heap_.capacity());
  heap_.push_back(&page);
  sift_up(heap_.size() - 1);
}

void EvictionQueue::remove(PageEntry& page) {
  const auto index = static_cast<size_t>(page.queue_index);
  MR_CHECK(index < heap_.size() && heap_[index] == &page, "page is not in this queue of {}",
           heap_.size());
  PageEntry* last = heap_.back();
  heap_.pop_back();
  page.queue_index = -1;
  if (last == &page) return;
  put(index, last);
  restore_order(*last);
}

void EvictionQueue::restore_order(PageEntry& page) {
  sift_up(static_cast<size_t>(page.queue_index));
  sift_down(static_cast<size_t>(page.queue_index));
}

void EvictionQueue::put(size_t index, PageEntry* page) {
  heap_[index] = page;
  page->queue_index = static_cast<int32_t>(index);
}

void EvictionQueue::sift_up(size_t index) {
  PageEntry* page = heap_[index];
  while (index > 0) {
    const size_t parent = (index - 1) / 2;
    if (!before(*page, *heap_[parent])) break;
    put(index, heap_[parent]);
    index = parent;
  }
  put(index, page);
}

void EvictionQueue::sift_down(size_t index) {
  PageEntry* page = heap_[index];
  while (2 * index + 1 < heap_.size()) {
    size_t child = 2 * index + 1;
    if (child + 1 < heap_.size() && before(*heap_[child + 1], *heap_[child])) ++child;
    if (!before(*heap_[child], *page)) break;
    put(index, heap_[child]);
    index = child;
  }
  put(index, page);
}

}  // namespace millrace::kvstore
