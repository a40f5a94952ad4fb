// Scores of the pages that a prompt in a lane begins with: the lane's rank computes those of all pages, and the ranks that
// hold the prefix give them to theirs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvstore/kv_store.h"
#include "worker/engine/kv_sink.h"
#include "worker/exchange/prefix.h"

namespace millrace::worker {

// Keeps them of the layers that it passes on.
class PrefixScoreSink final : public KvSink {
 public:
  // `inner` outlives it, or is null: nobody wants the layers.
  PrefixScoreSink(int64_t prefix_pages, KvSink* inner)
      : prefix_pages_(prefix_pages), inner_(inner) {}

  bool stages_layers() const override { return inner_ == nullptr || inner_->stages_layers(); }
  Result<void> stage_layer(int32_t layer, const LocalKv& local) override;
  Result<void> write_layer(const LayerKv& kv) override;
  Result<void> finish() override;

  // [layers so far, kv heads of this rank, pages of the prefix]
  std::span<const float> scores() const { return scores_; }

 private:
  const int64_t prefix_pages_;
  KvSink* const inner_;
  std::vector<float> scores_;
};

// Gives `request_id`, which has no pages on this rank but its own of `prefix`, their scores: `scores` as of
// PrefixScoreSink::scores, of all layers. kInternal: they are not so many.
Result<void> set_prefix_scores(kvstore::KvStore& store, const std::string& request_id,
                               const PromptPrefix& prefix, int rank, std::span<const float> scores);

}  // namespace millrace::worker
