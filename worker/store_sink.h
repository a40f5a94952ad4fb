// Hands finished layers to the rank's KV store, page by page with digests and scores.
#pragma once

#include <string>
#include <vector>

#include "kernels/api/device.h"
#include "kvstore/kv_store.h"
#include "worker/kv_sink.h"

namespace millrace::worker {

class StoreSink final : public KvSink {
 public:
  // `pages`: the prompt's pages this rank holds, ascending, as given to KvStore::begin_request. All
  // outlive the sink.
  StoreSink(kernels::Device& device, kvstore::KvStore& store, std::string request_id,
            const kvstore::KvGeometry& geometry, std::vector<int64_t> pages);

  Result<void> write_layer(const LayerKv& kv) override;

 private:
  Result<void> write_head(const LayerKv& kv, int32_t head);
  void fill_page(const LocalKv& local, int32_t head, int64_t ordinal);

  kernels::Device& device_;
  kvstore::KvStore& store_;
  std::string request_id_;
  kvstore::KvGeometry geometry_;
  std::vector<int64_t> pages_;
  std::vector<std::byte> page_;            // one page, being put together
  std::vector<float> min_, max_, radius_;  // [pages, head_dim] of one head
};

}  // namespace millrace::worker
