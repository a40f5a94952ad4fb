// SPDX-License-Identifier: Apache-2.0
// Brings cached pages of a layer from the KV store into device memory, on threads of its own, while
// the device's operations go on: the reverse of PageWriter. Each thread takes a few pages at a
// time. Where the device reaches the pages (in its own memory, or by Device::lock_host), it gathers
// and checks them itself. Otherwise the thread checks them and copies them into page-locked memory,
// and from there to the device, K and V to separate rows. There is no copy for each page: 131,072
// tokens of 32 layers and 8 heads would be a million (docs/notebook/prefix-on-gpus.md).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/exchange/prefix.h"
#include "kernels/api/device.h"
#include "kvstore/pinned_pages.h"
#include "worker/staging/chunk_threads.h"
#include "worker/staging/page_chunks.h"
#include "worker/staging/prefix_pins.h"

namespace millrace::worker {

// Enough threads to keep up with a GPU's bus (docs/notebook/prefix-on-gpus.md).
inline constexpr int kMaxPageReaders = 8;

// Pages of a request's prefix, and where they go: the i-th page of each head to rows
// [64 i, 64 i + 64). `pins` outlives the layer.
struct CachedLayer {
  PrefixPins* pins = nullptr;
  std::span<const int64_t> pages;  // of the prompt, ascending
  int32_t layer = 0;
  engine::KvPlace to;
};

class PageReader {
 public:
  // `device` outlives the reader. `num_threads` applies to a device with memory of its own. For any
  // other device there are no threads: begin() does all the work, and copies pages from where they
  // lie.
  static Result<std::unique_ptr<PageReader>> create(kernels::Device& device,
                                                    const kvstore::KvGeometry& geometry,
                                                    int num_threads);

  const kvstore::KvGeometry& geometry() const { return geometry_; }
  // Whether pages still arrive after begin() has returned.
  bool runs_beside() const { return threads_.any(); }

  // Call it on the device's thread. `layer.to` is overwritten from when the device's operations
  // called so far are done until wait() or give_up() returns. The layer before must have been
  // waited for, or given up.
  void begin(const CachedLayer& layer);
  // Waits until every page of the layer begun last is in device memory, or one failed. kCorrupt
  // where a page does not match its checksum, wherever it lay.
  Result<void> wait(Deadline deadline);
  // Gives up that layer: returns once no thread writes to it.
  void give_up() { threads_.give_up(); }

  // What has been brought so far, by the tier where the pages lay, and the threads' time for it.
  // Where a chunk has pages of several tiers, each page counts an equal part of its time. Any
  // thread.
  PerTier<kvstore::ReadTotals> loads() const;

 private:
  // What one thread works with.
  struct Workspace {
    std::unique_ptr<kernels::CopyLane> lane;
    kernels::HostBuffer
        pages;  // [2 (K, V), pages of a chunk, page bytes / 2]; empty without threads
  };

  PageReader(const kvstore::KvGeometry& geometry, int num_threads)
      : geometry_(geometry), threads_(num_threads) {}

  using Pages = std::span<const kvstore::PinnedPage>;

  Result<void> bring(const PageChunk& chunk, Workspace& workspace);
  // Calls `use` with the chunk's pages and whether the copy lane reaches all of them where they
  // lie. If it does not, all of them are in host memory.
  template <typename Use>
  Result<void> with_pages(const PageChunk& chunk, const kernels::CopyLane& lane, const Use& use);
  template <typename Use>
  Result<void> pin_and_use(const PageChunk& chunk, const kernels::CopyLane& lane, const Use& use);
  // Where a chunk's pages go.
  engine::KvPlace destination(const PageChunk& chunk) const;
  // Whether the copy lane can gather the page; and whether it can gather all of them.
  static bool reaches(const kernels::CopyLane& lane, const kvstore::PinnedPage& page);
  bool reached(Pages pages, const kernels::CopyLane& lane);
  Result<void> gather(const PageChunk& chunk, Pages pages, kernels::CopyLane& lane);
  // Copies pages to rows in host memory, and checks them.
  Result<void> copy(const PageChunk& chunk, Pages pages, const engine::KvPlace& to) const;
  Error damaged(const PageChunk& chunk, Pages pages, size_t page) const;
  Result<void> bring_pages(const PageChunk& chunk, Workspace& workspace, PerTier<int64_t>& pages);

  const kvstore::KvGeometry geometry_;
  std::vector<Workspace> workspaces_;
  CachedLayer layer_;
  std::shared_mutex pins_;          // exclusive: one thread alone has pages pinned
  std::atomic<bool> told_ = false;  // logged: pages in host memory are not reached
  mutable std::mutex loads_mutex_;
  PerTier<kvstore::ReadTotals> loads_;  // guarded by loads_mutex_
  ChunkThreads threads_;                // last: they use all of the above
};

}  // namespace millrace::worker
