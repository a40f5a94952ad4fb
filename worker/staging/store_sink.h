// SPDX-License-Identifier: Apache-2.0
// Hands finished layers to the rank's KV store, page by page, with digests and scores. On a GPU a
// layer is staged in device memory, in the order of the device's operations, and leaves from there
// while the next one is computed:
//   device    ... layer l | stage l     | layer l + 1 ...         | stage l + 1     | layer l + 2
//   writers                             | pages of l to the store |                 | pages ...
// The device waits for the host only where pages take longer than a layer. Where the store's pages
// are 8-bit floats, the device encodes the layer as it stages it; digests are then of the values
// that the codes stand for.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_sink.h"
#include "kernels/api/device.h"
#include "kvstore/request_writer.h"
#include "worker/staging/chunk_threads.h"
#include "worker/staging/page_writer.h"

namespace millrace::worker {

struct StoredBytes {
  int64_t total = 0;
  int64_t while_computing = 0;  // of these, written before a later layer had been computed
};

class StoreSink final : public engine::KvSink {
 public:
  // `pages`: the prompt's pages that this rank computes, ascending; `prefix_pages`: those that were
  // cached; both as given to RequestWriter::begin_request. All of them get scores. `writer`: of that
  // device and store, used by this sink alone while it lives. Device, store and writer outlive the
  // sink.
  StoreSink(kernels::Device& device, kvstore::RequestWriter& store, PageWriter& writer,
            std::string request_id, std::vector<int64_t> pages,
            std::span<const int64_t> prefix_pages = {});
  // Gives up a layer that is on its way.
  ~StoreSink() override;
  StoreSink(const StoreSink&) = delete;
  StoreSink& operator=(const StoreSink&) = delete;

  // True on a device with memory of its own.
  bool stages_layers() const override { return writer_.runs_beside(); }
  // Waits until the layer before has left, on a GPU while this one is computed; then this layer's
  // pages leave.
  Result<void> stage_layer(int32_t layer, const engine::LocalKv& local) override;
  Result<void> write_layer(const engine::LayerKv& kv) override;
  Result<void> finish() override;
  // Waits until the layers staged so far have left. Until the next one, the writer may serve
  // another sink.
  Result<void> settle() { return finish(); }

  // The layers before this number are complete in the store. Any thread.
  int32_t num_complete() const { return num_complete_; }
  const StoredBytes& stored() const { return stored_; }

 private:
  Result<void> prepare(const engine::LocalKv& local);
  // Whether layers go to the store from a stage: on a device with memory of its own, and where
  // pages are 8-bit floats.
  bool has_stage() const { return stages_layers() || writer_.geometry().float8 != nullptr; }
  // Has the device copy the layer to the stage, where there is one, and digest its pages.
  StagedLayer copy_to_stage(int32_t number, const engine::LocalKv& local);
  void copy_rows(void* stage, const void* rows, const engine::LocalKv& local);
  // Encodes a kv head's keys to the stage as 8-bit floats; kept_ has the values that these stand
  // for.
  void encode_keys(const engine::LocalKv& local, int32_t head, float scale);
  // The same for values of consecutive heads, without kept_.
  void encode_values(const engine::LocalKv& local, int32_t first_head, int32_t num_heads,
                     float scale);
  void digest(const void* keys, DType dtype, const engine::LocalKv& local, int32_t head);
  // As complete_layer(), while the device may be computing the next layer, which ends at
  // `computed`.
  Result<void> complete_layer_before(kernels::TimeMark computed);
  // Waits for the pages of the layer staged last, then has them given their scores.
  Result<void> complete_layer();
  // Sets the scores of the layer written last, beside the engine's thread: a score decides a page's
  // place among all pages of the store, and a layer of a long prompt has thousands of pages.
  void begin_scores();
  // Until they are set.
  Result<void> wait_for_scores();

  kernels::Device& device_;
  kvstore::RequestWriter& store_;
  PageWriter& writer_;
  std::string request_id_;
  std::vector<int64_t> pages_;
  std::vector<int64_t> held_pages_;

  // Allocated at the first layer; the writer's threads read them.
  kernels::DeviceBuffer k_, v_;  // the layer staged, or empty
  kernels::DeviceBuffer kept_;   // of 8-bit floats, the keys of one kv head as float32
  kernels::DeviceBuffer digests_;
  std::vector<std::vector<float>> scores_;  // by kv head of the layer written last
  int32_t layer_ = -1;                      // staged and not complete, or -1
  std::atomic<int32_t> num_complete_ = 0;
  StoredBytes stored_;
  std::vector<std::vector<float>> scores_to_set_;  // of layer num_complete_
  ChunkThreads score_thread_;  // none on a device whose memory is the host's; last: uses the above
};

}  // namespace millrace::worker
