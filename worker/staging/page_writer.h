// SPDX-License-Identifier: Apache-2.0
// Brings the pages of a layer from device memory into the KV store, on threads of its own, so that
// the device goes on with the next layer. Each thread takes a few pages at a time: it copies them
// to the host, page by page K then V, and writes them to the store. Whole pages that get a slot on
// the device are copied there from the layer. Copy lanes and page-locked memory take longer to make
// than layers of a short prompt take to compute, so a writer serves one request after another.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/exchange/kv_exchange.h"
#include "kernels/api/device.h"
#include "kvstore/request_writer.h"
#include "worker/staging/chunk_threads.h"
#include "worker/staging/page_chunks.h"

namespace millrace::worker {

// Enough threads to keep up with a GPU. A layer of 131,072 tokens has 128 MiB on each of four
// ranks: four threads bring it to the store in 10 ms, and the layer takes 38 ms to compute. Eight
// were no faster (docs/notebook/service.md).
inline constexpr int kMaxPageWriters = 4;

// A layer's rows, in the form of the store's pages, and their digests, in device memory.
struct StagedLayer {
  std::string request_id;
  std::span<const int64_t> pages;  // of the prompt, that the rows make up; ascending
  int32_t layer = 0;
  engine::LocalKv kv;
  const float* digests = nullptr;  // [kv heads, 3 (min, max, radius), pages, head_dim]
};

class PageWriter {
 public:
  // `device` and `store` outlive the writer. `num_threads` applies to a device with memory of its
  // own. For any other device there are no threads, and begin() does all the work.
  static Result<std::unique_ptr<PageWriter>> create(kernels::Device& device,
                                                    kvstore::RequestWriter& store,
                                                    const kvstore::KvGeometry& geometry,
                                                    int num_threads);
  const kvstore::KvGeometry& geometry() const { return geometry_; }
  // Whether pages still leave after begin() has returned.
  bool runs_beside() const { return threads_.any(); }

  // Call it on the device's thread. Writes what the device's operations called so far leave in
  // `layer`, once they are done. `layer` must stay until wait() or give_up() returns. The layer
  // before must have been waited for, or given up.
  void begin(const StagedLayer& layer);
  // Waits until every page of the layer begun last is in the store, or one failed.
  Result<void> wait(Deadline deadline);
  // Gives up that layer: returns once no thread reads it.
  void give_up() { threads_.give_up(); }
  // Bytes of the layer begun last that are in the store by now.
  int64_t bytes_written() const { return bytes_written_; }

 private:
  // What one thread works with.
  struct Workspace {
    std::unique_ptr<kernels::CopyLane> lane;
    kernels::HostBuffer pages;    // [pages of a chunk, page bytes]
    kernels::HostBuffer digests;  // [3, pages of a chunk, head_dim]
  };
  PageWriter(kvstore::RequestWriter& store, const kvstore::KvGeometry& geometry, int num_threads)
      : store_(store), geometry_(geometry), threads_(num_threads) {}

  // Waits until the device's operations have produced the layer, the `number`-th that was begun.
  Result<void> wait_for_layer(int64_t number, Workspace& workspace);
  Result<void> read_chunk(const PageChunk& chunk, Workspace& workspace);
  void read_half(const PageChunk& chunk, const void* rows, std::byte* pages,
                 Workspace& workspace) const;
  Result<void> write_chunk(const PageChunk& chunk, const Workspace& workspace);
  // Writes pages [first, first + count) of the chunk; those that get a slot on the device come
  // `from` there.
  Result<void> write_part(const PageChunk& chunk, int64_t first, int64_t count,
                          const kvstore::DeviceHalves& from, const Workspace& workspace);

  kvstore::RequestWriter& store_;
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
