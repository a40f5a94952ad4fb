// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "kvclient/c/handles.h"
#include "kvclient/c/values.h"

using namespace millrace;
using namespace millrace::kvclient::c;

namespace {

static_assert(static_cast<int>(DType::kFloat16) == MKV_FLOAT16);

}  // namespace

extern "C" {

mkv_status mkv_manifest_parse(const char* json, size_t json_bytes, mkv_manifest** out) {
  if (json == nullptr) return null_argument("json");
  if (out == nullptr) return null_argument("out");
  return guarded([&]() -> mkv_status {
    auto manifest = kvclient::parse_manifest({json, json_bytes}, "manifest");
    if (!manifest.ok()) return fail(manifest.error());
    if (const auto checked = kvclient::check_manifest(*manifest); !checked.ok()) {
      return fail(checked.error());
    }
    *out = new mkv_manifest{std::make_shared<const kvclient::Manifest>(std::move(*manifest))};
    return MKV_OK;
  });
}

void mkv_manifest_destroy(mkv_manifest* manifest) {
  delete manifest;
}

mkv_status mkv_manifest_get(const mkv_manifest* handle, mkv_manifest_info* out) {
  if (handle == nullptr) return null_argument("manifest");
  const auto& manifest = *handle->manifest;
  return guarded([&] {
    mkv_manifest_info info{};
    info.num_layers = manifest.layout.num_layers;
    info.num_kv_heads = manifest.layout.num_kv_heads;
    info.head_dim = manifest.layout.head_dim;
    info.dtype = manifest.is_float8()
                     ? static_cast<mkv_dtype>(MKV_FLOAT8_E4M3)
                     : static_cast<mkv_dtype>(find_dtype(manifest.layout.dtype).value());
    info.dtype_bytes = static_cast<int32_t>(manifest.element_bytes());
    info.page_tokens = manifest.layout.page_tokens;
    info.tp = manifest.tp;
    info.cp = manifest.cp;
    info.num_shards = static_cast<int32_t>(manifest.shards.size());
    info.num_logprobs = static_cast<int32_t>(manifest.top_logprobs.size());
    info.is_result = manifest.is_result();
    info.first_token_id = manifest.first_token_id;
    info.num_tokens = manifest.num_tokens;
    info.num_pages = manifest.num_pages();
    info.page_bytes = manifest.page_bytes();
    info.lease_ms = manifest.lease_ms;
    info.density = manifest.density;
    info.recall = manifest.recall;
    info.request_id = manifest.request_id.c_str();
    info.lease_id = manifest.lease_id.c_str();
    info.epoch = manifest.epoch.c_str();
    info.model = manifest.model.c_str();
    info.model_fingerprint = manifest.model_fingerprint.c_str();
    info.coordinator_instance = manifest.coordinator_instance.c_str();
    return write_struct(info, out, "mkv_manifest_info");
  });
}

mkv_status mkv_manifest_shard(const mkv_manifest* handle, int32_t index, mkv_shard_info* out) {
  if (handle == nullptr) return null_argument("manifest");
  const auto& shards = handle->manifest->shards;
  return guarded([&]() -> mkv_status {
    if (index < 0 || index >= std::ssize(shards)) {
      return fail(error(Errc::kInvalidArgument, "shard {} of {}", index, shards.size()));
    }
    const auto& shard = shards[static_cast<size_t>(index)];
    mkv_shard_info info{};
    info.rank = shard.rank;
    info.first_kv_head = shard.first_kv_head;
    info.num_kv_heads = shard.num_kv_heads;
    for (const auto& range : shard.token_ranges) info.num_tokens += range.end - range.begin;
    info.address = shard.address.c_str();
    return write_struct(info, out, "mkv_shard_info");
  });
}

mkv_status mkv_manifest_logprob(const mkv_manifest* handle, int32_t index, int32_t* token_id,
                                float* logprob) {
  if (handle == nullptr) return null_argument("manifest");
  if (token_id == nullptr || logprob == nullptr) return null_argument("token_id or logprob");
  const auto& tokens = handle->manifest->top_logprobs;
  return guarded([&]() -> mkv_status {
    if (index < 0 || index >= std::ssize(tokens)) {
      return fail(error(Errc::kInvalidArgument, "token {} of {}", index, tokens.size()));
    }
    *token_id = tokens[static_cast<size_t>(index)].token_id;
    *logprob = tokens[static_cast<size_t>(index)].logprob;
    return MKV_OK;
  });
}

mkv_status mkv_manifest_scales(const mkv_manifest* handle, int32_t layer, float* k, float* v) {
  if (handle == nullptr) return null_argument("manifest");
  if (k == nullptr || v == nullptr) return null_argument("k or v");
  const auto& layout = handle->manifest->layout;
  return guarded([&]() -> mkv_status {
    if (layer < 0 || layer >= layout.num_layers) {
      return fail(error(Errc::kInvalidArgument, "layer {} of {}", layer, layout.num_layers));
    }
    if (layout.scales.by_head()) {
      return fail(error(Errc::kUnsupported, "each kv head has scales: mkv_manifest_head_scales"));
    }
    const auto scale = layout.scales.empty() ? KvScale() : layout.scales.of(layer, 0);
    *k = scale.k;
    *v = scale.v;
    return MKV_OK;
  });
}

mkv_status mkv_manifest_head_scales(const mkv_manifest* handle, int32_t layer, int32_t kv_head,
                                    float* k, float* v) {
  if (handle == nullptr) return null_argument("manifest");
  if (k == nullptr || v == nullptr) return null_argument("k or v");
  const auto& layout = handle->manifest->layout;
  return guarded([&]() -> mkv_status {
    if (layer < 0 || layer >= layout.num_layers || kv_head < 0 || kv_head >= layout.num_kv_heads) {
      return fail(error(Errc::kInvalidArgument, "layer {} of {}, kv head {} of {}", layer,
                        layout.num_layers, kv_head, layout.num_kv_heads));
    }
    const auto scale = layout.scales.empty() ? KvScale() : layout.scales.of(layer, kv_head);
    *k = scale.k;
    *v = scale.v;
    return MKV_OK;
  });
}

int32_t mkv_manifest_has_page(const mkv_manifest* handle, int32_t layer, int32_t kv_head,
                              int64_t page) {
  if (handle == nullptr) return 0;
  const auto& manifest = *handle->manifest;
  const auto& layout = manifest.layout;
  const bool inside = layer >= 0 && layer < layout.num_layers && kv_head >= 0 &&
                      kv_head < layout.num_kv_heads && page >= 0 && page < manifest.num_pages();
  return inside && manifest.has_page(layer, kv_head, page) ? 1 : 0;
}

size_t mkv_manifest_json(const mkv_manifest* handle, char* buffer, size_t buffer_bytes) {
  size_t length = 0;
  guarded([&] {
    const std::string json = kvclient::to_json(*handle->manifest);
    length = json.size();
    if (buffer_bytes > 0) {
      const size_t count = std::min(length, buffer_bytes - 1);
      std::memcpy(buffer, json.data(), count);
      buffer[count] = '\0';
    }
    return MKV_OK;
  });
  return length;
}

}  // extern "C"
