// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "kvclient/c/handles.h"
#include "kvclient/c/values.h"

using namespace millrace;
using namespace millrace::kvclient::c;

namespace {

// Fields that both kinds of requests have: dtype, decode_float8, memory, timeout_s, priority,
// ask_again.
template <typename Request>
Result<kvclient::PullRequest> common_part_of(const Request& from) {
  if (from.dtype < MKV_FLOAT32 || from.dtype > MKV_FLOAT8_E4M3) {
    return error(Errc::kUnsupported, "dtype {}", from.dtype);
  }
  const bool wants_codes = from.dtype == MKV_FLOAT8_E4M3;
  if (wants_codes && from.decode_float8 != 0) {
    return Error(Errc::kInvalidArgument, "decode_float8 with a destination of 8-bit floats");
  }
  if (from.memory < MKV_MEMORY_HOST) {
    return error(Errc::kUnsupported, "memory {}", from.memory);
  }
  kvclient::PullRequest request;
  request.dtype = wants_codes ? DType::kFloat32 : static_cast<DType>(from.dtype);
  request.device =
      from.memory == MKV_MEMORY_HOST ? kvclient::kHostMemory : from.memory - MKV_MEMORY_CUDA;
  request.timeout = duration_of(from.timeout_s);
  request.priority = from.priority;
  request.ask_again = from.ask_again != 0;
  request.float8 = wants_codes               ? kvclient::Float8Cache::kCodes
                   : from.decode_float8 != 0 ? kvclient::Float8Cache::kDecoded
                                             : kvclient::Float8Cache::kRefused;
  return request;
}

Result<kvclient::PullRequest> request_of(const mkv_page_request& from) {
  if (from.pages == nullptr || from.num_pages <= 0) {
    return error(Errc::kInvalidArgument, "{} pages at {}", from.num_pages,
                 static_cast<const void*>(from.pages));
  }
  MR_ASSIGN_OR_RETURN(auto request, common_part_of(from));
  for (int64_t i = 0; i < from.num_pages; ++i) {
    const auto& page = from.pages[i];
    request.pages.push_back(
        {.name = {.layer = page.layer, .kv_head = page.kv_head, .page = page.page},
         .to = static_cast<std::byte*>(page.to)});
  }
  return request;
}

Result<kvclient::PullRequest> request_of(const mkv_pull_request& from) {
  if (from.layers == nullptr || from.num_layers <= 0 || from.block_ids == nullptr ||
      from.num_blocks < 0) {
    return error(Errc::kInvalidArgument, "{} layers at {}, {} blocks at {}", from.num_layers,
                 static_cast<const void*>(from.layers), from.num_blocks,
                 static_cast<const void*>(from.block_ids));
  }
  if (from.order < MKV_ORDER_POSITION || from.order > MKV_ORDER_CRITICALITY) {
    return error(Errc::kUnsupported, "order {}", from.order);
  }
  MR_ASSIGN_OR_RETURN(auto request, common_part_of(from));
  request.first_layer = from.first_layer;
  request.first_kv_head = from.first_kv_head;
  request.num_kv_heads = from.num_kv_heads;
  request.head_dim = from.head_dim;
  request.block_tokens = from.block_tokens;
  request.first_token = from.first_token;
  request.num_tokens = from.num_tokens;
  request.block_ids.assign(from.block_ids, from.block_ids + from.num_blocks);
  request.order = static_cast<kvclient::PullOrder>(from.order);
  request.hot_share = from.hot_share == 0 ? kvclient::kDefaultHotShare : from.hot_share;
  request.takes_part = from.takes_part != 0;
  request.feed = from.feed == nullptr ? nullptr : from.feed->feed;
  for (int32_t i = 0; i < from.num_layers; ++i) {
    const auto& layer = from.layers[i];
    request.layers.push_back({.k = static_cast<std::byte*>(layer.k),
                              .v = static_cast<std::byte*>(layer.v),
                              .block_stride = layer.block_stride,
                              .head_stride = layer.head_stride,
                              .token_stride = layer.token_stride});
  }
  return request;
}

mkv_status status_of(const Result<void>& result) {
  return result.ok() ? MKV_OK : fail(result.error());
}

mkv_status pull_status(const std::optional<Result<void>>& end) {
  return end ? status_of(*end) : MKV_PENDING;
}

template <typename Request>
mkv_status start(mkv_client* client, const mkv_manifest* manifest, const Request* given,
                 const char* what, mkv_pull** out) {
  if (client == nullptr) return null_argument("client");
  if (manifest == nullptr) return null_argument("manifest");
  if (out == nullptr) return null_argument("out");
  return guarded([&]() -> mkv_status {
    Request request{};
    if (const auto read = read_struct(given, what, request); read != MKV_OK) return read;
    auto pull_request = request_of(request);
    if (!pull_request.ok()) return fail(pull_request.error());
    auto pull = client->client->start(manifest->manifest, std::move(*pull_request));
    if (!pull.ok()) return fail(pull.error());
    *out = new mkv_pull{std::move(*pull)};
    return MKV_OK;
  });
}

}  // namespace

extern "C" {

mkv_status mkv_pull_start(mkv_client* client, const mkv_manifest* manifest,
                          const mkv_pull_request* request, mkv_pull** out) {
  return start(client, manifest, request, "mkv_pull_request", out);
}

mkv_status mkv_pull_start_pages(mkv_client* client, const mkv_manifest* manifest,
                                const mkv_page_request* request, mkv_pull** out) {
  return start(client, manifest, request, "mkv_page_request", out);
}

mkv_status mkv_pull_wait(mkv_pull* pull, double timeout_s) {
  if (pull == nullptr) return null_argument("pull");
  return guarded(
      [&] { return pull_status(pull->pull->wait(Deadline::after(duration_of(timeout_s)))); });
}

mkv_status mkv_pull_wait_layer(mkv_pull* pull, int32_t layer, double timeout_s) {
  if (pull == nullptr) return null_argument("pull");
  return guarded([&] {
    return pull_status(pull->pull->wait_for_layer(layer, Deadline::after(duration_of(timeout_s))));
  });
}

mkv_status mkv_pull_wait_hot_layer(mkv_pull* pull, int32_t layer, double timeout_s) {
  if (pull == nullptr) return null_argument("pull");
  return guarded([&] {
    return pull_status(pull->pull->wait_for_hot(layer, Deadline::after(duration_of(timeout_s))));
  });
}

void mkv_pull_cancel(mkv_pull* pull) {
  if (pull == nullptr) return;
  guarded([&] {
    pull->pull->cancel();
    return MKV_OK;
  });
}

void mkv_pull_destroy(mkv_pull* pull) {
  delete pull;
}

mkv_status mkv_pull_get_stats(const mkv_pull* pull, mkv_pull_stats* out) {
  if (pull == nullptr) return null_argument("pull");
  return guarded([&] {
    const auto progress = pull->pull->progress();
    const auto& counts = progress.stats;
    mkv_pull_stats stats{};
    stats.status = !progress.end        ? MKV_PENDING
                   : progress.end->ok() ? MKV_OK
                                        : static_cast<mkv_status>(progress.end->error().code);
    stats.layers_done = progress.layers_complete;
    stats.corrupt_pages = static_cast<int32_t>(counts.corrupt_pages);
    stats.pages_done = counts.pages;
    stats.pages_total = pull->pull->num_pages();
    stats.bytes = counts.bytes;
    stats.pages_device = counts.pages_by_tier[Tier::kDevice];
    stats.pages_host = counts.pages_by_tier[Tier::kHost];
    stats.pages_disk = counts.pages_by_tier[Tier::kDisk];
    for (const auto& [name, bytes] : counts.bytes_by_transport) {
      if (name == "device-pool") stats.bytes_device_pool += bytes;
      (name == "shm"                                  ? stats.bytes_shm
       : name == "tcp"                                ? stats.bytes_tcp
       : name == "same-host" || name == "device-pool" ? stats.bytes_same_host
                                                      : stats.bytes_other) += bytes;
    }
    stats.seconds = counts.seconds;
    stats.waiting_seconds = progress.waiting_s;
    stats.hot_pages_done = counts.hot_pages;
    stats.hot_pages_total = counts.hot_pages_total;
    stats.score_bytes = counts.score_bytes;
    stats.hot_layers_done = progress.hot_layers_complete;
    stats.hot_seconds = progress.hot_s.value_or(0);
    return write_struct(stats, out, "mkv_pull_stats");
  });
}

}  // extern "C"
