// SPDX-License-Identifier: Apache-2.0
#include "worker/store/make_manifest.h"

#include <algorithm>
#include <array>

#include "common/float8.h"
#include "kernels/index/tiling.h"

namespace millrace::worker {

namespace {

// RankShard with a fixed size, to travel in one collective.
struct ShardRecord {
  std::array<char, 256> address = {};
  kvstore::Placement placement;
};

void set_layout(protocol::KvLayout& layout, const model::ModelWeights& weights,
                const KvScales* float8) {
  layout.set_num_layers(static_cast<uint32_t>(weights.config.num_layers));
  layout.set_num_kv_heads(static_cast<uint32_t>(weights.config.num_kv_heads));
  layout.set_head_dim(static_cast<uint32_t>(weights.config.head_dim));
  layout.set_page_tokens(static_cast<uint32_t>(kernels::kPageTokens));
  layout.set_dtype(std::string(float8 ? kFloat8KvName : dtype_name(weights.compute_dtype)));
  layout.set_page_layout("k-then-v");
  if (float8 == nullptr) return;
  for (const KvScale& scale : float8->all()) {
    layout.add_k_scales(scale.k);
    layout.add_v_scales(scale.v);
  }
}

// Ascending; adjacent ranges are merged.
std::vector<engine::TokenRange> ranges_of(const engine::PromptPrefix& prefix,
                                          const engine::Partition& partition, int cp_rank) {
  std::vector<engine::TokenRange> ranges;
  const auto add = [&](const engine::TokenRange& range) {
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  };
  for (const int64_t page : prefix.pages(cp_rank)) {
    add({.begin = page * kernels::kPageTokens, .end = (page + 1) * kernels::kPageTokens});
  }
  for (const auto& range : partition.ranges(cp_rank)) add(range);
  return ranges;
}

void set_result(protocol::Manifest& manifest, const engine::PrefillResult& result) {
  manifest.set_density(result.density);
  manifest.set_recall(result.recall.mean());
  manifest.set_recall_p01(result.recall.first_percentile());
  manifest.set_dense_for_length(static_cast<uint32_t>(result.dense_for_length));
  manifest.set_first_token_id(result.first_token);
  for (const auto& token : result.top_tokens) {
    auto& top = *manifest.add_top_logprobs();
    top.set_token_id(token.token_id);
    top.set_logprob(token.logprob);
    top.set_logit(token.logit);
  }
}

void add_tiers(protocol::Manifest& manifest, std::span<const RankShard> ranks, int64_t page_bytes) {
  for (const Tier tier : kTiers) {
    int64_t pages = 0;
    for (const auto& rank : ranks) pages += rank.placement.pages[tier];
    auto& count = *manifest.add_tiers();
    count.set_tier(std::string(tier_name(tier)));
    count.set_pages(static_cast<uint64_t>(pages));
    count.set_bytes(static_cast<uint64_t>(pages * page_bytes));
  }
}

}  // namespace

Result<std::vector<RankShard>> gather_shards(comm::Communicator& world, const std::string& address,
                                             const kvstore::Placement& placement,
                                             Deadline deadline) {
  ShardRecord own{.placement = placement};
  MR_CHECK(address.size() < own.address.size(), "address of {} bytes", address.size());
  std::copy(address.begin(), address.end(), own.address.begin());
  std::vector<ShardRecord> records(static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(records.size(), int64_t{sizeof(ShardRecord)});
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(&own, 1)),
                                      std::as_writable_bytes(std::span(records)), counts,
                                      deadline));
  std::vector<RankShard> shards;
  for (const auto& record : records) shards.push_back({record.address.data(), record.placement});
  return shards;
}

Result<protocol::Manifest> make_manifest(const ManifestFacts& request,
                                         const model::ModelWeights& weights,
                                         const engine::Partition& partition,
                                         const engine::PromptPrefix& prefix,
                                         engine::GridShape grid) {
  protocol::Manifest manifest;
  manifest.set_version(1);
  manifest.set_model(weights.config.name);
  manifest.set_model_fingerprint(weights.fingerprint);
  manifest.set_request_id(request.request_id);
  manifest.set_num_tokens(static_cast<uint64_t>(partition.num_tokens()));
  manifest.set_tp(static_cast<uint32_t>(grid.tp));
  manifest.set_cp(static_cast<uint32_t>(grid.cp));
  manifest.set_lease_id(request.lease_id);
  manifest.set_epoch(request.epoch);
  manifest.set_lease_ms(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(request.lease).count()));
  set_layout(*manifest.mutable_layout(), weights, request.float8);
  for (size_t rank = 0; rank < request.ranks.size(); ++rank) {
    const auto tp_rank = static_cast<int32_t>(rank) % grid.tp;
    const auto cp_rank = static_cast<int>(rank) / grid.tp;
    MR_ASSIGN_OR_RETURN(const auto shard, model::shard_shape(weights.config, {tp_rank, grid.tp}));
    const auto ranges = ranges_of(prefix, partition, cp_rank);
    if (shard.kv_replica != 0 || ranges.empty()) continue;
    auto& entry = *manifest.add_shards();
    entry.set_rank(static_cast<uint32_t>(rank));
    entry.set_address(request.ranks[rank].address);
    entry.set_first_kv_head(static_cast<uint32_t>(shard.first_kv_head));
    entry.set_num_kv_heads(static_cast<uint32_t>(shard.num_kv_heads));
    for (const auto& range : ranges) {
      auto& tokens = *entry.add_token_ranges();
      tokens.set_begin(static_cast<uint64_t>(range.begin));
      tokens.set_end(static_cast<uint64_t>(range.end));
    }
  }
  if (request.kept != nullptr) {
    manifest.set_version(2);
    manifest.mutable_kept_pages()->set_pages(request.kept->bytes());
  }
  if (request.float8 != nullptr) manifest.set_version(request.float8->by_head() ? 4 : 3);
  if (request.result == nullptr) return manifest;
  set_result(manifest, *request.result);
  const int64_t element_bytes =
      request.float8 != nullptr ? int64_t{sizeof(Float8)} : dtype_bytes(weights.compute_dtype);
  add_tiers(manifest, request.ranks,
            2 * kernels::kPageTokens * weights.config.head_dim * element_bytes);
  return manifest;
}

}  // namespace millrace::worker
