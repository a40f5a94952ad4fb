// SPDX-License-Identifier: Apache-2.0
// Scores of the cached pages that a prompt in a lane begins with. The lane's rank computes the
// scores of all pages; the ranks that hold the prefix then set them on their own pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/exchange/prefix.h"
#include "engine/kv_sink.h"
#include "kvstore/request_writer.h"

namespace millrace::worker {

// Keeps the prefix's scores of the layers that it passes on to `inner`.
class PrefixScoreSink final : public engine::KvSink {
 public:
  // `inner` outlives it. Null: the layers go nowhere.
  PrefixScoreSink(int64_t prefix_pages, engine::KvSink* inner)
      : prefix_pages_(prefix_pages), inner_(inner) {}

  bool stages_layers() const override { return inner_ == nullptr || inner_->stages_layers(); }
  Result<void> stage_layer(int32_t layer, const engine::LocalKv& local) override;
  Result<void> write_layer(const engine::LayerKv& kv) override;
  Result<void> finish() override;

  // [layers so far, kv heads of this rank, pages of the prefix]
  std::span<const float> scores() const { return scores_; }

 private:
  const int64_t prefix_pages_;
  engine::KvSink* const inner_;
  std::vector<float> scores_;
};

// Sets the scores of the pages of `request_id`, which on this rank has only those pages of `prefix`
// that `rank` holds. `scores`: as of PrefixScoreSink::scores(), of all layers. kInternal: the
// number of scores is wrong.
Result<void> set_prefix_scores(kvstore::RequestWriter& store, const std::string& request_id,
                               const engine::PromptPrefix& prefix, int rank,
                               std::span<const float> scores);

}  // namespace millrace::worker
