// The pages of a prompt's cached prefix that this rank's store holds, as the engine takes them:
// copied into device memory page by page, K and V of each head. What lies in memory that the host
// can read is copied from where it is, and pinned until the device has it; the rest is read first.
// The engine's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kernels/api/device.h"
#include "kvstore/kv_store.h"
#include "worker/engine/prefix.h"

namespace millrace::worker {

class StorePrefix final : public PrefixSource {
 public:
  // `pages`: of the prefix, those that this rank holds, as given to KvStore::begin_request for
  // `request_id`. Device and store outlive it; it ends before the request does.
  StorePrefix(kernels::Device& device, kvstore::KvStore& store, std::string request_id,
              std::vector<int64_t> pages);

  Result<void> load(int32_t layer, int64_t first, int64_t count, const KvPlace& to) override;
  void done_with(int32_t layer) override;

 private:
  struct Pinned {
    int32_t layer = 0;
    std::unique_ptr<kvstore::PinnedPages> pages;
  };

  Result<void> load_head(int32_t layer, int32_t head, std::span<const int64_t> pages,
                         const KvPlace& to);
  Result<void> read(kvstore::PinnedPages& pages);

  kernels::Device& device_;
  kvstore::KvStore& store_;
  const std::string request_id_;
  const std::vector<int64_t> pages_;
  std::deque<Pinned> pinned_;  // that the device may still copy from
};

}  // namespace millrace::worker
