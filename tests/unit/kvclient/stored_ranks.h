// SPDX-License-Identifier: Apache-2.0
// The cache of FakeRanks in real stores behind real KV servers, one store for each shard.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kvstore/kv_store.h"
#include "tests/unit/kvclient/fake_ranks.h"
#include "worker/store/kv_server.h"

namespace millrace::test {

class StoredRanks {
 public:
  struct Options {
    bool shares_memory = true;
    // Pages of each rank in host memory; the rest is on disk.
    int64_t host_pages = 1000;
    // Slots of a device that the host cannot address. Every page in them has a copy on the host.
    int64_t far_device_pages = 0;
    // Makes the memory of that device so that other processes can map it; called for each rank.
    // Empty: they cannot map it.
    std::function<std::unique_ptr<kvstore::SlotMemory>(int64_t num_slots, int64_t page_bytes)>
        device_memory = {};
    int64_t read_bytes = kvstore::kDefaultReadBytes;
  };

  // `transport` and `cache` must outlive the ranks. A failure ends the program.
  StoredRanks(comm::Transport& transport, const FakeRanks& cache, const Options& options);

  const kvclient::Manifest& manifest() const { return manifest_; }
  kvstore::KvStore& store(size_t rank) { return *ranks_[rank].store; }
  // Ends the rank's server, as when its process ends.
  void stop(size_t rank) { ranks_[rank].server.reset(); }
  size_t num_ranks() const { return ranks_.size(); }
  int64_t bytes_sent_over(comm::Carrier carrier) const;
  // The sum over all ranks.
  int64_t pinned_pages() const;

 private:
  struct Rank {
    std::unique_ptr<kvstore::KvStore> store;
    std::unique_ptr<worker::KvServer> server;  // ends before its store
  };
  void fill(kvstore::KvStore& store, const kvclient::Shard& shard, const FakeRanks& cache);

  kvclient::Manifest manifest_;
  std::vector<Rank> ranks_;
};

}  // namespace millrace::test
