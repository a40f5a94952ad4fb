// SPDX-License-Identifier: Apache-2.0
#include "decode/paged_prompt.h"

#include <algorithm>

#include "decode/pool/read_dtype.h"

namespace millrace::decode {

namespace {

// For each kv head: a portion being computed and one on its way.
constexpr int64_t kLeastPages = 8;

std::shared_ptr<const kernels::PageRule> rule_of(const ProgressiveOptions& options) {
  if (options.rule) return options.rule;
  if (options.proven) return std::make_shared<kernels::BoundRule>(options.mass);
  return std::make_shared<kernels::CalibratedRule>(options.mass);
}

PagePool::Options pool_options(const CacheShape& shape, const kvclient::Manifest& manifest,
                               int64_t num_slots, Eviction eviction) {
  return {.num_layers = shape.num_layers,
          .first_kv_head = shape.first_kv_head,
          .num_kv_heads = shape.num_kv_heads,
          .num_pages = shape.num_pages(),
          .page_bytes = read_page_bytes(manifest),
          .num_slots = num_slots,
          .eviction = eviction};
}

}  // namespace

void ProgressiveReport::add(const ProgressiveReport& other) {
  num_slots += other.num_slots;
  layer_pages += other.layer_pages;
  attention.steps = std::max(attention.steps, other.attention.steps);
  attention.pages_touched.resize(other.attention.pages_touched.size());
  pool.layers.resize(other.pool.layers.size());
  for (size_t layer = 0; layer < pool.layers.size(); ++layer) {
    attention.pages_touched[layer] += other.attention.pages_touched[layer];
    pool.layers[layer].add(other.pool.layers[layer]);
  }
  pool.filled_pages += other.pool.filled_pages;
  pool.predicted_pages += other.pool.predicted_pages;
  pool.needed_pages += other.pool.needed_pages;
  pool.evictions += other.pool.evictions;
  lookahead.made += other.lookahead.made;
  lookahead.dropped += other.lookahead.dropped;
  lookahead.pages_read += other.lookahead.pages_read;
  lookahead.pages_foreseen += other.lookahead.pages_foreseen;
  intake.digests_s = std::max(intake.digests_s, other.intake.digests_s);
  intake.hot_s = std::max(intake.hot_s, other.intake.hot_s);
  intake.whole_s = std::max(intake.whole_s, other.intake.whole_s);
  intake.digest_bytes += other.intake.digest_bytes;
  intake.hot_pages += other.intake.hot_pages;
}

Result<std::unique_ptr<PagedPrompt>> PagedPrompt::open(const Parts& parts,
                                                       const ProgressiveOptions& options,
                                                       double hot_share, Deadline deadline) {
  const auto& manifest = *parts.manifest;
  const auto& shard = parts.weights->shard;
  const CacheShape shape{.num_layers = manifest.layout.num_layers,
                         .first_kv_head = shard.first_kv_head,
                         .num_kv_heads = shard.num_kv_heads,
                         .num_query_heads = shard.num_query_heads,
                         .head_dim = manifest.layout.head_dim,
                         .num_tokens = manifest.num_tokens,
                         .dtype = read_dtype(manifest),
                         .kept = manifest.kept_pages ? &*manifest.kept_pages : nullptr};
  const int64_t all = shape.num_layers * shape.num_kv_heads * shape.num_pages();
  const int64_t least = std::min(all, kLeastPages * shape.num_kv_heads);
  const int64_t room = options.pages_memory_bytes == 0
                           ? all
                           : options.pages_memory_bytes / read_page_bytes(manifest);
  if (room < least) {
    return error(Errc::kInvalidArgument,
                 "{} bytes of memory for pages; {} pages of {} bytes are the least",
                 options.pages_memory_bytes, least, read_page_bytes(manifest));
  }
  std::unique_ptr<PagedPrompt> prompt(
      new PagedPrompt(parts, options, shape, std::min(room, all), hot_share, deadline));
  return prompt;
}

PagedPrompt::PagedPrompt(const Parts& parts, const ProgressiveOptions& options,
                         const CacheShape& shape, int64_t num_slots, double hot_share,
                         Deadline deadline)
    : parts_(parts),
      options_(options),
      shape_(shape),
      deadline_(deadline),
      rule_(rule_of(options)),
      source_(*parts.client, parts.manifest),
      pool_(source_, pool_options(shape, *parts.manifest, num_slots, options.eviction)),
      digests_(shape.num_layers, shape.num_kv_heads, shape.num_pages(), shape.head_dim),
      kernel_(parts.num_threads),
      attention_(shape, digests_, pool_, kernel_, *rule_),
      intake_({.transport = parts.transport,
               .manifest = parts_.manifest.get(),
               .feed = parts_.feed.get(),
               .digests = &digests_,
               .pool = &pool_,
               .attention = &attention_},
              shape, hot_share, deadline) {}

Result<void> PagedPrompt::wait(Deadline deadline) {
  MR_RETURN_IF_ERROR(intake_.wait(options_.start, deadline));
  if (!options_.predict) return {};
  MR_ASSIGN_OR_RETURN(lookahead_, LayerLookahead::start({.weights = parts_.weights,
                                                         .digests = &digests_,
                                                         .rule = rule_.get(),
                                                         .attention = &attention_,
                                                         .pool = &pool_},
                                                        shape_, deadline_));
  return {};
}

void PagedPrompt::begin_layer(int32_t layer, const float* hidden, int32_t position) {
  if (layer == 0) pool_.begin_step(position - shape_.num_tokens);
  if (lookahead_) lookahead_->begin_layer(layer, hidden, position);
}

Result<void> PagedPrompt::attend(const Step& step, Deadline deadline) {
  MR_RETURN_IF_ERROR(attention_.attend({.layer = step.layer,
                                        .first_token = step.first_token,
                                        .q = step.q,
                                        .tail_lse = step.tail_lse,
                                        .out = step.out,
                                        .lse = step.lse},
                                       deadline));
  if (!lookahead_) return {};
  for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
    lookahead_->compare(step.layer, h, attention_.pages_read(h));
  }
  return {};
}

ProgressiveReport PagedPrompt::report() const {
  return {.num_slots = pool_.num_slots(),
          .layer_pages = shape_.num_kv_heads * shape_.num_pages(),
          .attention = attention_.stats(),
          .pool = pool_.stats(),
          .lookahead = lookahead_ ? lookahead_->stats() : LookaheadStats(),
          .intake = intake_.times()};
}

}  // namespace millrace::decode
