// Brings the pages of a layer from device memory into the KV store, on threads of its own, so that
// the device goes on with the next layer. Each thread takes a few pages at a time: copies them to
// the host, page by page K then V, and writes them to the store. Lanes and page-locked memory take
// longer to make than layers of a short prompt to compute, so they serve one request after another.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/api/device.h"
#include "kvstore/kv_store.h"
#include "worker/exchange/kv_exchange.h"
#include "worker/staging/chunk_threads.h"
#include "worker/staging/page_chunks.h"

namespace millrace::worker {

// Threads that keep up with a GPU: four bring the 128 MiB that a layer of 131,072 tokens has on
// each of four ranks to the store in 10 ms, of the 38 in which it is computed. Eight were no faster
// (docs/notebook/service.md).
inline constexpr int kMaxPageWriters = 4;

// A layer's rows, as the store's pages have them, and page digests in device memory.
struct StagedLayer {
  std::string request_id;
  std::span<const int64_t> pages;  // of the prompt, those that the rows are, ascending
  int32_t layer = 0;
  LocalKv kv;
  const float* digests = nullptr;  // [kv heads, 3 (min, max, radius), pages, head_dim]
};

class PageWriter {
 public:
  // Both outlive the writer. `num_threads` is for a device with memory of its own; for another
  // there are none, and begin() does all the work.
  static Result<std::unique_ptr<PageWriter>> create(kernels::Device& device,
                                                    kvstore::KvStore& store,
                                                    const kvstore::KvGeometry& geometry,
                                                    int num_threads);
  const kvstore::KvGeometry& geometry() const { return geometry_; }
  // Whether pages leave after begin() returned.
  bool runs_beside() const { return threads_.any(); }

  // On the device's thread: begins with what the device's operations called so far leave in
  // `layer`, once they are done; it stays until wait() or give_up() returns. The layer before must
  // be through, or given up.
  void begin(const StagedLayer& layer);
  // Until every page of the layer begun last is in the store, or one failed.
  Result<void> wait(Deadline deadline);
  // Nothing more of that layer is worth writing: returns once nobody reads it.
  void give_up() { threads_.give_up(); }
  // Of the layer begun last, in the store by now.
  int64_t bytes_written() const { return bytes_written_; }

 private:
  // What one thread works with.
  struct Workspace {
    std::unique_ptr<kernels::CopyLane> lane;
    kernels::HostBuffer pages;    // [pages of a chunk, page bytes]
    kernels::HostBuffer digests;  // [3, pages of a chunk, head_dim]
  };
  PageWriter(kvstore::KvStore& store, const kvstore::KvGeometry& geometry, int num_threads)
      : store_(store), geometry_(geometry), threads_(num_threads) {}

  // Until the device's operations have left the layer, the `number`-th that was begun.
  Result<void> wait_for_layer(int64_t number, Workspace& workspace);
  Result<void> read_chunk(const PageChunk& chunk, Workspace& workspace);
  void read_half(const PageChunk& chunk, const void* rows, std::byte* pages,
                 Workspace& workspace) const;
  Result<void> write_chunk(const PageChunk& chunk, const Workspace& workspace);

  kvstore::KvStore& store_;
  kvstore::KvGeometry geometry_;
  std::vector<Workspace> workspaces_;

  StagedLayer layer_;
  std::mutex arrival_mutex_;
  int64_t num_begun_ = 0;    // layers
  int64_t num_arrived_ = 0;  // layers
  std::atomic<int64_t> bytes_written_ = 0;
  ChunkThreads threads_;  // last: they use all of the above
};

}  // namespace millrace::worker
