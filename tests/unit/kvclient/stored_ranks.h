// The cache of FakeRanks in real stores behind real KV servers, a store for each shard.
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
    // Of a rank, in pages; the rest is on disk.
    int64_t host_pages = 1000;
    // Slots of a device that the host cannot address; what it holds has a copy on the host.
    int64_t far_device_pages = 0;
    // That memory of the device, where other processes can map it: called for each rank. Empty: they cannot.
    std::function<std::unique_ptr<kvstore::SlotMemory>(int64_t num_slots, int64_t page_bytes)>
        device_memory = {};
    int64_t read_bytes = kvstore::kDefaultReadBytes;
  };

  // `transport` and `cache` outlive the ranks. A failure ends the program.
  StoredRanks(comm::Transport& transport, const FakeRanks& cache, const Options& options);

  const kvclient::Manifest& manifest() const { return manifest_; }
  kvstore::KvStore& store(size_t rank) { return *ranks_[rank].store; }
  // Its server goes, as with its process.
  void stop(size_t rank) { ranks_[rank].server.reset(); }
  size_t num_ranks() const { return ranks_.size(); }
  int64_t bytes_sent_over(comm::Carrier carrier) const;
  // Of all ranks.
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
