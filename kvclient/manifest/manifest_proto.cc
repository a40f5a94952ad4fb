// SPDX-License-Identifier: Apache-2.0
#include "kvclient/manifest/manifest_proto.h"

#include <algorithm>

namespace millrace::kvclient {

namespace {

// Far above any prompt, and far below what would overflow.
constexpr int64_t kMaxTokens = int64_t{1} << 32;

// Has no layers if the bytes do not fit the layout: check_manifest refuses that.
KeptPages kept_pages_of(const Manifest& manifest, const std::string& bytes) {
  const auto& layout = manifest.layout;
  KeptPages none(0, 0, 0);
  if (layout.num_layers <= 0 || layout.num_kv_heads <= 0 || layout.page_tokens <= 0 ||
      manifest.num_tokens <= 0 || manifest.num_tokens > kMaxTokens) {
    return none;
  }
  auto kept =
      KeptPages::from_bytes(layout.num_layers, layout.num_kv_heads, manifest.num_pages(), bytes);
  return kept.ok() ? *std::move(kept) : none;
}

// A missing scale becomes 0, which check_manifest refuses.
KvScales scales_of(const protocol::KvLayout& from) {
  std::vector<KvScale> scales;
  for (int i = 0; i < std::max(from.k_scales_size(), from.v_scales_size()); ++i) {
    scales.push_back({.k = i < from.k_scales_size() ? from.k_scales(i) : 0,
                      .v = i < from.v_scales_size() ? from.v_scales(i) : 0});
  }
  const bool by_head = scales.size() > from.num_layers() &&
                       scales.size() == size_t{from.num_layers()} * size_t{from.num_kv_heads()};
  return KvScales(std::move(scales), by_head ? static_cast<int32_t>(from.num_kv_heads()) : 1);
}

KvLayout from_protocol(const protocol::KvLayout& from) {
  return {.num_layers = static_cast<int32_t>(from.num_layers()),
          .num_kv_heads = static_cast<int32_t>(from.num_kv_heads()),
          .head_dim = static_cast<int32_t>(from.head_dim()),
          .page_tokens = static_cast<int32_t>(from.page_tokens()),
          .dtype = from.dtype(),
          .page_layout = from.page_layout(),
          .scales = scales_of(from)};
}

Shard from_protocol(const protocol::KvShard& from) {
  Shard shard{.rank = static_cast<int32_t>(from.rank()),
              .address = from.address(),
              .first_kv_head = static_cast<int32_t>(from.first_kv_head()),
              .num_kv_heads = static_cast<int32_t>(from.num_kv_heads()),
              .token_ranges = {}};
  for (const auto& range : from.token_ranges()) {
    shard.token_ranges.push_back(
        {static_cast<int64_t>(range.begin()), static_cast<int64_t>(range.end())});
  }
  return shard;
}

void set_layout(protocol::KvLayout& to, const KvLayout& from) {
  to.set_num_layers(static_cast<uint32_t>(from.num_layers));
  to.set_num_kv_heads(static_cast<uint32_t>(from.num_kv_heads));
  to.set_head_dim(static_cast<uint32_t>(from.head_dim));
  to.set_page_tokens(static_cast<uint32_t>(from.page_tokens));
  to.set_dtype(from.dtype);
  to.set_page_layout(from.page_layout);
  for (const KvScale& scale : from.scales.all()) {
    to.add_k_scales(scale.k);
    to.add_v_scales(scale.v);
  }
}

void set_shard(protocol::KvShard& to, const Shard& from) {
  to.set_rank(static_cast<uint32_t>(from.rank));
  to.set_address(from.address);
  to.set_first_kv_head(static_cast<uint32_t>(from.first_kv_head));
  to.set_num_kv_heads(static_cast<uint32_t>(from.num_kv_heads));
  for (const auto& range : from.token_ranges) {
    auto& tokens = *to.add_token_ranges();
    tokens.set_begin(static_cast<uint64_t>(range.begin));
    tokens.set_end(static_cast<uint64_t>(range.end));
  }
}

// Fields that are known once the prefill has ended.
void set_result(protocol::Manifest& to, const Manifest& from) {
  to.set_first_token_id(from.first_token_id);
  for (const auto& token : from.top_logprobs) {
    auto& logprob = *to.add_top_logprobs();
    logprob.set_token_id(token.token_id);
    logprob.set_logprob(token.logprob);
    logprob.set_logit(token.logit);
  }
  to.set_density(from.density);
  to.set_recall(from.recall);
  to.set_recall_p01(from.recall_p01);
  to.set_dense_for_length(static_cast<uint32_t>(from.dense_for_length));
  for (const auto& count : from.tiers) {
    auto& tier = *to.add_tiers();
    tier.set_tier(count.tier);
    tier.set_pages(static_cast<uint64_t>(count.pages));
    tier.set_bytes(static_cast<uint64_t>(count.bytes));
  }
}

}  // namespace

Manifest from_protocol(const protocol::Manifest& from) {
  Manifest manifest{.version = static_cast<int32_t>(from.version()),
                    .model = from.model(),
                    .model_fingerprint = from.model_fingerprint(),
                    .request_id = from.request_id(),
                    .num_tokens = static_cast<int64_t>(from.num_tokens()),
                    .layout = from_protocol(from.layout()),
                    .shards = {},
                    .first_token_id = from.first_token_id(),
                    .top_logprobs = {},
                    .lease_id = from.lease_id(),
                    .epoch = from.epoch(),
                    .coordinator_instance = from.coordinator_instance(),
                    .lease_ms = static_cast<int64_t>(from.lease_ms()),
                    .density = from.density(),
                    .recall = from.recall(),
                    .recall_p01 = from.recall_p01(),
                    .dense_for_length = static_cast<int32_t>(from.dense_for_length()),
                    .tiers = {},
                    .tp = static_cast<int32_t>(from.tp()),
                    .cp = static_cast<int32_t>(from.cp()),
                    .kept_pages = {}};
  for (const auto& shard : from.shards()) manifest.shards.push_back(from_protocol(shard));
  for (const auto& token : from.top_logprobs()) {
    manifest.top_logprobs.push_back({token.token_id(), token.logprob(), token.logit()});
  }
  for (const auto& tier : from.tiers()) {
    manifest.tiers.push_back(
        {tier.tier(), static_cast<int64_t>(tier.pages()), static_cast<int64_t>(tier.bytes())});
  }
  if (from.has_kept_pages()) {
    manifest.kept_pages = kept_pages_of(manifest, from.kept_pages().pages());
  }
  return manifest;
}

protocol::Manifest to_protocol(const Manifest& from) {
  protocol::Manifest manifest;
  manifest.set_version(static_cast<uint32_t>(from.version));
  manifest.set_model(from.model);
  manifest.set_model_fingerprint(from.model_fingerprint);
  manifest.set_request_id(from.request_id);
  manifest.set_num_tokens(static_cast<uint64_t>(from.num_tokens));
  set_layout(*manifest.mutable_layout(), from.layout);
  for (const auto& shard : from.shards) set_shard(*manifest.add_shards(), shard);
  manifest.set_lease_id(from.lease_id);
  manifest.set_epoch(from.epoch);
  manifest.set_coordinator_instance(from.coordinator_instance);
  manifest.set_lease_ms(static_cast<uint64_t>(from.lease_ms));
  manifest.set_tp(static_cast<uint32_t>(from.tp));
  manifest.set_cp(static_cast<uint32_t>(from.cp));
  if (from.kept_pages) manifest.mutable_kept_pages()->set_pages(from.kept_pages->bytes());
  set_result(manifest, from);
  return manifest;
}

}  // namespace millrace::kvclient
