// Brings cached pages of a layer from the KV store into device memory, on threads of its own, beside
// the device's operations: PageWriter's way back. Each thread takes a few pages at a time. Where the device
// reaches them (its own memory, Device::lock_host), it gathers and checks them itself. Others the thread checks and
// copies into page-locked memory, and from there to the device, K and V each to rows of their own. Not a
// copy a page: 131,072 tokens of 32 layers and 8 heads would be a million (docs/notebook/prefix-on-gpus.md).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/api/device.h"
#include "kvstore/kv_store.h"
#include "worker/exchange/prefix.h"
#include "worker/staging/chunk_threads.h"
#include "worker/staging/page_chunks.h"
#include "worker/staging/prefix_pins.h"

namespace millrace::worker {

// Threads that keep up with the bus of a GPU (docs/notebook/prefix-on-gpus.md).
inline constexpr int kMaxPageReaders = 8;

// Pages of a request's prefix, and where they go: page i of each head to rows [64 i, 64 i + 64). `pins`
// outlive the layer.
struct CachedLayer {
  PrefixPins* pins = nullptr;
  std::span<const int64_t> pages;  // of the prompt, ascending
  int32_t layer = 0;
  KvPlace to;
};

class PageReader {
 public:
  // `device` outlives the reader. `num_threads` is for a device with memory of its own; for another there
  // are none, begin() does all the work, and copies from where the pages lie.
  static Result<std::unique_ptr<PageReader>> create(kernels::Device& device,
                                                    const kvstore::KvGeometry& geometry,
                                                    int num_threads);

  const kvstore::KvGeometry& geometry() const { return geometry_; }
  // Whether pages come after begin() returned.
  bool runs_beside() const { return threads_.any(); }

  // On the device's thread. What is at `layer.to` is overwritten once the device's operations called
  // so far are done, and until wait() or give_up() returns. The layer before must be through, or
  // given up.
  void begin(const CachedLayer& layer);
  // Until every page of the layer begun last is in device memory, or one failed: kCorrupt where one
  // does not match its checksum, wherever it lay.
  Result<void> wait(Deadline deadline);
  // Nothing more of that layer is wanted: returns once nobody writes to it.
  void give_up() { threads_.give_up(); }

  // Any thread: what it has brought so far, by where the pages lay, and what that took of its threads. Of a chunk with
  // pages of several tiers each counts an equal part.
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
  // Calls `use` with the chunk's pages and whether the lane reaches them all, wherever they lie; if not, all are in host
  // memory.
  template <typename Use>
  Result<void> with_pages(const PageChunk& chunk, const kernels::CopyLane& lane, const Use& use);
  template <typename Use>
  Result<void> pin_and_use(const PageChunk& chunk, const kernels::CopyLane& lane, const Use& use);
  // Where a chunk's pages go.
  KvPlace destination(const PageChunk& chunk) const;
  // Whether the lane may gather the page; all of them.
  static bool reaches(const kernels::CopyLane& lane, const kvstore::PinnedPage& page);
  bool reached(Pages pages, const kernels::CopyLane& lane);
  Result<void> gather(const PageChunk& chunk, Pages pages, kernels::CopyLane& lane);
  // To rows of the host's, checked.
  Result<void> copy(const PageChunk& chunk, Pages pages, const KvPlace& to) const;
  Error damaged(const PageChunk& chunk, Pages pages, size_t page) const;
  Result<void> bring_pages(const PageChunk& chunk, Workspace& workspace, PerTier<int64_t>& pages);

  const kvstore::KvGeometry geometry_;
  std::vector<Workspace> workspaces_;
  CachedLayer layer_;
  std::shared_mutex pins_;          // exclusive: one thread alone has pages pinned
  std::atomic<bool> told_ = false;  // that pages in host memory are not reached
  mutable std::mutex loads_mutex_;
  PerTier<kvstore::ReadTotals> loads_;  // guarded by loads_mutex_
  ChunkThreads threads_;                // last: they use all of the above
};

}  // namespace millrace::worker
