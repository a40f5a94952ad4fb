// SPDX-License-Identifier: Apache-2.0
// Ranks that serve a cache of known bytes, without an engine or a store: the source of pulls in
// tests of the client. Each kv head of each page has different bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/dtype.h"
#include "kvclient/manifest/manifest.h"
#include "protocol/kv_messages.pb.h"

namespace millrace::test {

class FakeRanks {
 public:
  struct Options {
    int32_t num_layers = 2;
    int32_t num_kv_heads = 4;
    int32_t head_dim = 16;
    DType dtype = DType::kFloat32;
    int64_t num_tokens = 700;
    int tp = 2;                             // num_kv_heads / tp heads a rank
    int cp = 2;                             // stripes of two pages, dealt in turn
    std::optional<float> first_score = {};  // replaces the score of page 0 of every head
    std::string same_host_socket = {};      // named in replies
    // For which requests a byte of the last page is wrong, so that its checksum does not match.
    // Called on ranks' threads.
    std::function<bool(const protocol::PageRequest& request)> spoiled = {};
  };
  // Called with each request on its rank's thread. If it returns an error, that is the reply.
  using Hook = std::function<Result<void>(const protocol::PageRequest& request)>;

  // `transport` must outlive the ranks. A failure ends the program.
  FakeRanks(comm::Transport& transport, const Options& options, Hook hook = {});

  const kvclient::Manifest& manifest() const { return manifest_; }
  // [K or V][page_tokens, head_dim]; rows past the prompt's end are 0.
  std::vector<std::byte> page(int32_t layer, int32_t kv_head, int64_t page) const;
  // Scores of the pages of one layer and kv head; they sum to 1. A few pages carry most of it,
  // different ones in each head.
  std::vector<float> scores(int32_t layer, int32_t kv_head) const;
  // [3, head_dim], all equal.
  std::vector<float> digest(int32_t layer, int32_t kv_head, int64_t page) const;
  int64_t num_requests() const { return num_requests_; }
  int num_ranks() const { return static_cast<int>(servers_.size()); }
  void lose_rank(int rank) { servers_[static_cast<size_t>(rank)].reset(); }

 private:
  comm::TransportReply answer(int rank, std::string_view header);
  comm::TransportReply answer_scores(int rank, const protocol::PageRequest& request) const;

  const Options options_;
  const Hook hook_;
  std::atomic<int64_t> num_requests_ = 0;
  kvclient::Manifest manifest_;
  std::vector<std::unique_ptr<comm::TransportServer>> servers_;  // last: they use all of the above
};

}  // namespace millrace::test
