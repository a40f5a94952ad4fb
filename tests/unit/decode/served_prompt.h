// SPDX-License-Identifier: Apache-2.0
// One prompt after its prefill. Ranks ran as threads, with the real engine and real stores. Their
// threads are gone, but the servers of the stores still answer: what decode nodes talk to is here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/kept_pages.h"
#include "common/kv_scales.h"
#include "engine/ranks/rank_grid.h"
#include "kvclient/manifest/manifest.h"
#include "kvstore/kv_store.h"
#include "protocol/manifest.pb.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/whole_cache.h"
#include "worker/store/kv_server.h"

namespace millrace::test {

inline constexpr std::chrono::seconds kServedLease{60};

// A page of the tiny model in float32: 64 tokens of 16 dimensions, K and V.
inline constexpr int64_t kTinyPageBytes = 2 * 64 * 16 * 4;

std::vector<int32_t> random_tokens(int64_t count, int32_t vocab_size);

// Data of the events `manifest` and `done`.
std::string event_of(const kvclient::Manifest& manifest);

class ServedPrompt {
 public:
  struct Options {
    std::string model_directory;
    engine::GridShape grid;
    std::vector<int32_t> tokens;
    DType compute_dtype = DType::kFloat32;
    // The dtype of the pages, if it is not `compute_dtype`: pages are what a rank that computes in
    // it would leave.
    std::optional<DType> cache_dtype = {};
    // For pages in 8-bit floats; `cache_dtype` is then the compute dtype.
    std::shared_ptr<const KvScales> float8 = nullptr;
    // The pages that are kept, if others are dropped.
    std::shared_ptr<const KeptPages> kept = nullptr;
    // Far fewer than a rank writes, so that every tier holds pages.
    int64_t device_pages = 6;
    int64_t host_pages = 5;
  };

  // `transport` and `clock` must outlive the prompt. A failure ends the test program, since nothing
  // can be tested without a served prompt.
  ServedPrompt(comm::Transport& transport, const Clock& clock, const Options& options);

  const protocol::Manifest& manifest() const { return manifest_; }
  const model::ModelConfig& config() const { return config_; }
  int64_t num_tokens() const { return num_tokens_; }
  // The page of one layer and kv head as it must be: K then V, with rows past the prompt's end 0.
  std::vector<std::byte> expected_page(int32_t layer, int32_t kv_head, int64_t page) const;

  kvstore::KvStore& store(int rank) { return *ranks_[static_cast<size_t>(rank)].store; }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }

 private:
  struct Rank {
    std::unique_ptr<kvstore::KvStore> store;
    std::unique_ptr<worker::KvServer> server;  // ends before its store
  };
  void serve(comm::Transport& transport, const Clock& clock, const Options& options,
             std::unique_ptr<comm::Communicator> world);

  model::ModelConfig config_;
  int64_t num_tokens_;
  TempDirectory disk_;
  std::unique_ptr<WholeCache> cache_;
  std::vector<Rank> ranks_;
  protocol::Manifest manifest_;
};

}  // namespace millrace::test
