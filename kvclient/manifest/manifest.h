// SPDX-License-Identifier: Apache-2.0
// What a decode engine must know to fetch a KV cache: where its pages are, and their shape. Plain
// values; protocol/manifest.proto says what each field means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/kept_pages.h"
#include "common/kv_scales.h"
#include "common/result.h"

namespace millrace::kvclient {

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;  // of the model
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  std::string dtype;        // "float32", "bfloat16", "float16", "float8_e4m3"
  std::string page_layout;  // "k-then-v": K [page_tokens, head_dim], then V
  KvScales scales;          // of float8_e4m3: an element is its code times the scale
};

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Which pages of which kv heads a rank serves.
struct Shard {
  int32_t rank = 0;
  std::string address;
  int32_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
  std::vector<TokenRange> token_ranges;
};

struct TierCount {
  std::string tier;  // "device", "host", "disk"
  int64_t pages = 0;
  int64_t bytes = 0;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  float logit = 0;
};

struct Manifest {
  int32_t version = 0;
  std::string model;
  std::string model_fingerprint;  // 16 hex digits: only for this config and these weights
  std::string request_id;
  int64_t num_tokens = 0;  // of the prompt
  KvLayout layout;
  std::vector<Shard> shards;
  int32_t first_token_id = 0;
  std::vector<TokenLogprob> top_logprobs;
  std::string lease_id;
  std::string epoch;
  std::string coordinator_instance;  // of the process that handed it out
  int64_t lease_ms = 0;
  double density = 0;
  double recall = 0;
  double recall_p01 = 0;
  int32_t dense_for_length = 0;
  std::vector<TierCount> tiers;
  int32_t tp = 0;
  int32_t cp = 0;
  // The pages that exist of a cache that was made smaller on request. Unset: all of them.
  std::optional<KeptPages> kept_pages;

  // Whether it is from a finished prefill: then the first token and everything that needs all
  // layers are known.
  bool is_result() const { return !tiers.empty(); }
  // Pages of one layer and kv head of the prompt, whether kept or not.
  int64_t num_pages() const;
  bool has_page(int32_t layer, int32_t kv_head, int64_t page) const {
    return !kept_pages || kept_pages->has(layer, kv_head, page);
  }
  bool is_float8() const { return layout.dtype == kFloat8KvName; }
  // 0 if the dtype is unknown.
  int64_t element_bytes() const;
  // K and V.
  int64_t page_bytes() const;
};

// Parses proto3 JSON: a bare manifest, or an object with a field "manifest", as responses and
// events have it. `source` names it in errors. The manifest is not checked yet.
Result<Manifest> parse_manifest(std::string_view json, const std::string& source);
// The same from a file.
Result<Manifest> read_manifest(const std::string& path);
// What parse_manifest reads.
std::string to_json(const Manifest& manifest);

// kUnsupported: another version, page size, layout or dtype. kInvalidArgument: numbers that no
// model has, invalid scales, or shards that do not cover the cache.
Result<void> check_manifest(const Manifest& manifest);

}  // namespace millrace::kvclient
