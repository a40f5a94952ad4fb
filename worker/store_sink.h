// Hands finished layers to the rank's KV store, page by page with digests and scores.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/api/device.h"
#include "kernels/api/host_window.h"
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
  // One head's rows and page digests, where the host reads them. Views of windows_.
  struct HostHead {
    std::span<const std::byte> k, v;  // [num_rows, head_dim]
    const float* digests = nullptr;   // min, max, radius: each [pages, head_dim]
    int64_t num_rows = 0;
  };
  struct Windows {
    kernels::HostWindow k, v, digests;
  };

  Result<void> prepare(const LocalKv& local);
  Result<HostHead> read_head(const LocalKv& local, int32_t head);
  Result<void> write_head(int32_t layer, int32_t kv_head, const HostHead& head);
  void fill_page(const HostHead& head, int64_t ordinal);

  kernels::Device& device_;
  kvstore::KvStore& store_;
  std::string request_id_;
  kvstore::KvGeometry geometry_;
  std::vector<int64_t> pages_;
  std::vector<std::byte> page_;     // one page, being put together
  kernels::DeviceBuffer digests_;   // of one head
  std::optional<Windows> windows_;  // from the first layer on
};

}  // namespace millrace::worker
