#include "kvclient/millrace_kv.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "comm/any/any_transport.h"
#ifdef MILLRACE_SDK_UCX
#include "comm/ucx/any_ucx.h"
#endif
#include "kvclient/handover/handover_feed.h"
#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/pull_client.h"

using namespace millrace;

struct mkv_manifest {
  std::shared_ptr<const kvclient::Manifest> manifest;
};

struct mkv_feed {
  std::shared_ptr<kvclient::HandoverFeed> feed = std::make_shared<kvclient::HandoverFeed>();
  std::mutex writing;
};

struct mkv_client {
  std::unique_ptr<comm::AnyTransport> transport;
  std::unique_ptr<kvclient::PullClient> client;  // ends before its transport
};

struct mkv_pull {
  std::unique_ptr<kvclient::Pull> pull;
};

namespace {

static_assert(static_cast<int>(Errc::kDenied) == MKV_DENIED);
static_assert(static_cast<int>(DType::kFloat16) == MKV_FLOAT16);

thread_local std::string last_error;

mkv_status fail(mkv_status status, const std::string& why) {
  last_error = why;
  return status;
}

mkv_status fail(const Error& why) {
  return fail(static_cast<mkv_status>(why.code), why.message);
}

mkv_status status_of(const Result<void>& result) {
  return result.ok() ? MKV_OK : fail(result.error());
}

// Runs what may throw: nothing gets past the interface.
template <typename Body>
mkv_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    last_error.clear();  // words would take memory
    return MKV_EXHAUSTED;
  } catch (const std::exception& why) {
    return fail(MKV_INTERNAL, why.what());
  } catch (...) {
    return fail(MKV_INTERNAL, "an exception of another kind");
  }
}

mkv_status null_argument(const char* what) {
  return fail(MKV_INVALID_ARGUMENT, std::string(what) + " is NULL");
}

// How large a structure was in version 1.0.
template <typename Struct>
constexpr size_t kFirstBytes = sizeof(Struct);
template <>
constexpr size_t kFirstBytes<mkv_pull_request> = offsetof(mkv_pull_request, order);
template <>
constexpr size_t kFirstBytes<mkv_client_options> = offsetof(mkv_client_options, tls_ca);
template <>
constexpr size_t kFirstBytes<mkv_pull_stats> = offsetof(mkv_pull_stats, hot_pages_done);

// Of structures of another version: what both know; 0 elsewhere.
template <typename Struct>
mkv_status read_struct(const Struct* from, const char* what, Struct& to) {
  if (from == nullptr) return null_argument(what);
  if (from->struct_bytes < kFirstBytes<Struct>) {
    return fail(error(Errc::kInvalidArgument, "{}.struct_bytes is {}, at least {} are needed", what,
                      from->struct_bytes, kFirstBytes<Struct>));
  }
  std::memcpy(&to, from, std::min<size_t>(from->struct_bytes, sizeof(Struct)));
  return MKV_OK;
}

template <typename Struct>
mkv_status write_struct(Struct from, Struct* to, const char* what) {
  if (to == nullptr) return null_argument(what);
  if (to->struct_bytes < kFirstBytes<Struct>) {
    return fail(error(Errc::kInvalidArgument, "{}.struct_bytes is {}, at least {} are needed", what,
                      to->struct_bytes, kFirstBytes<Struct>));
  }
  from.struct_bytes = to->struct_bytes;
  std::memcpy(to, &from, std::min<size_t>(to->struct_bytes, sizeof(Struct)));
  return MKV_OK;
}

Duration duration_of(double seconds) {
  // Three years; more would overflow somewhere.
  const double bounded = std::isnan(seconds) ? 0.0 : std::clamp(seconds, 0.0, 1e8);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(bounded));
}

mkv_manifest* handle_of(kvclient::Manifest manifest) {
  return new mkv_manifest{std::make_shared<const kvclient::Manifest>(std::move(manifest))};
}

// What a wait of the feed says: PENDING for its own deadline, which is no error here. A request
// that has failed with its deadline says so by feed.failure().
mkv_status waited(const Result<kvclient::Manifest>& result, const kvclient::HandoverFeed& feed,
                  mkv_manifest** out) {
  if (!result.ok()) {
    return feed.failure() || result.error().code != Errc::kDeadlineExceeded ? fail(result.error())
                                                                            : MKV_PENDING;
  }
  if (const auto checked = kvclient::check_manifest(*result); !checked.ok()) {
    return fail(checked.error());
  }
  *out = handle_of(*result);
  return MKV_OK;
}

Result<kvclient::PullRequest> request_of(const mkv_pull_request& from) {
  if (from.layers == nullptr || from.num_layers <= 0 || from.block_ids == nullptr ||
      from.num_blocks < 0) {
    return error(Errc::kInvalidArgument, "{} layers at {}, {} blocks at {}", from.num_layers,
                 static_cast<const void*>(from.layers), from.num_blocks,
                 static_cast<const void*>(from.block_ids));
  }
  if (from.dtype < MKV_FLOAT32 || from.dtype > MKV_FLOAT8_E4M3) {
    return error(Errc::kUnsupported, "dtype {}", from.dtype);
  }
  const bool wants_codes = from.dtype == MKV_FLOAT8_E4M3;
  if (wants_codes && from.decode_float8 != 0) {
    return Error(Errc::kInvalidArgument, "decode_float8 with a destination of 8-bit floats");
  }
  if (from.order < MKV_ORDER_POSITION || from.order > MKV_ORDER_CRITICALITY) {
    return error(Errc::kUnsupported, "order {}", from.order);
  }
  if (from.memory < MKV_MEMORY_HOST) {
    return error(Errc::kUnsupported, "memory {}", from.memory);
  }
  kvclient::PullRequest request{
      .first_layer = from.first_layer,
      .first_kv_head = from.first_kv_head,
      .num_kv_heads = from.num_kv_heads,
      .dtype = wants_codes ? DType::kFloat32 : static_cast<DType>(from.dtype),
      .head_dim = from.head_dim,
      .block_tokens = from.block_tokens,
      .first_token = from.first_token,
      .num_tokens = from.num_tokens,
      .block_ids = {from.block_ids, from.block_ids + from.num_blocks},
      .layers = {},
      .device =
          from.memory == MKV_MEMORY_HOST ? kvclient::kHostMemory : from.memory - MKV_MEMORY_CUDA,
      .timeout = duration_of(from.timeout_s),
      .priority = from.priority,
      .ask_again = from.ask_again != 0,
      .order = static_cast<kvclient::PullOrder>(from.order),
      .hot_share = from.hot_share == 0 ? kvclient::kDefaultHotShare : from.hot_share,
      .float8 = wants_codes               ? kvclient::Float8Cache::kCodes
                : from.decode_float8 != 0 ? kvclient::Float8Cache::kDecoded
                                          : kvclient::Float8Cache::kRefused,
      .feed = from.feed == nullptr ? nullptr : from.feed->feed};
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

std::string text_or_empty(const char* text) {
  return text == nullptr ? "" : text;
}

Result<std::unique_ptr<comm::AnyTransport>> transport_of(const mkv_client_options& options) {
  const TlsFiles tls{.certificate = text_or_empty(options.tls_cert),
                     .key = text_or_empty(options.tls_key),
                     .ca = text_or_empty(options.tls_ca)};
  std::optional<comm::TcpOptions> tcp;
  if (options.transport != MKV_TRANSPORT_SHM) tcp = comm::TcpOptions{.client_tls = tls};
  auto transport = std::make_unique<comm::AnyTransport>(tcp);
#ifdef MILLRACE_SDK_UCX
  add_ucx(*transport,
          {.transports = static_cast<comm::UcxTransports>(options.transport), .owns_log = false});
#else
  if (!tcp) return Error(Errc::kUnsupported, "this library was built without UCX");
#endif
  if (!tls.ca.empty() || !tls.certificate.empty() || !tls.key.empty()) {
    MR_RETURN_IF_ERROR(transport->check_tls());
  }
  return transport;
}

// What `read` brings, into an array of as many.
template <typename Read>
mkv_status read_floats(mkv_client* client, const mkv_manifest* manifest, float* to,
                       int64_t num_floats, Read read) {
  if (client == nullptr) return null_argument("client");
  if (manifest == nullptr) return null_argument("manifest");
  if (to == nullptr) return null_argument("array");
  return guarded([&]() -> mkv_status {
    kvclient::KvClient reader(*client->transport, *manifest->manifest, {});
    const auto values = read(reader);
    if (!values.ok()) return fail(values.error());
    if (std::ssize(*values) != num_floats) {
      return fail(error(Errc::kInvalidArgument, "{} floats for an array of {}", values->size(),
                        num_floats));
    }
    std::copy(values->begin(), values->end(), to);
    return MKV_OK;
  });
}

mkv_status pull_status(const std::optional<Result<void>>& end) {
  return end ? status_of(*end) : MKV_PENDING;
}

}  // namespace

extern "C" {

uint32_t mkv_version(void) {
  return MKV_VERSION_MAJOR << 16 | MKV_VERSION_MINOR;
}

const char* mkv_status_name(mkv_status status) {
  if (status == MKV_OK) return "ok";
  if (status == MKV_PENDING) return "pending";
  if (status < MKV_INVALID_ARGUMENT || status > MKV_DENIED) return "unknown";
  return errc_name(static_cast<Errc>(status)).data();
}

const char* mkv_last_error(void) {
  return last_error.c_str();
}

mkv_status mkv_manifest_parse(const char* json, size_t json_bytes, mkv_manifest** out) {
  if (json == nullptr) return null_argument("json");
  if (out == nullptr) return null_argument("out");
  return guarded([&]() -> mkv_status {
    auto manifest = kvclient::parse_manifest({json, json_bytes}, "manifest");
    if (!manifest.ok()) return fail(manifest.error());
    if (const auto checked = kvclient::check_manifest(*manifest); !checked.ok()) {
      return fail(checked.error());
    }
    *out = handle_of(std::move(*manifest));
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
    const auto scale =
        layout.scales.empty() ? KvScale() : layout.scales[static_cast<size_t>(layer)];
    *k = scale.k;
    *v = scale.v;
    return MKV_OK;
  });
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

mkv_status mkv_feed_create(mkv_feed** out) {
  if (out == nullptr) return null_argument("out");
  return guarded([&] {
    *out = new mkv_feed;
    return MKV_OK;
  });
}

void mkv_feed_destroy(mkv_feed* feed) {
  if (feed == nullptr) return;
  guarded([&] {
    feed->feed->fail(Error(Errc::kCancelled, "its feed was destroyed"));
    return MKV_OK;
  });
  delete feed;
}

mkv_status mkv_feed_write(mkv_feed* feed, const void* bytes, size_t num_bytes) {
  if (feed == nullptr) return null_argument("feed");
  if (bytes == nullptr && num_bytes > 0) return null_argument("bytes");
  return guarded([&]() -> mkv_status {
    const std::lock_guard lock(feed->writing);
    feed->feed->write({static_cast<const char*>(bytes), num_bytes});
    const auto why = feed->feed->failure();
    return why ? fail(*why) : MKV_OK;
  });
}

mkv_status mkv_feed_set_layers_ready(mkv_feed* feed, int32_t num_layers) {
  if (feed == nullptr) return null_argument("feed");
  return guarded([&] {
    feed->feed->set_layers_ready(num_layers);
    return MKV_OK;
  });
}

mkv_status mkv_feed_fail(mkv_feed* feed, mkv_status code, const char* message) {
  if (feed == nullptr) return null_argument("feed");
  return guarded([&]() -> mkv_status {
    if (code < MKV_INVALID_ARGUMENT || code > MKV_DENIED) {
      return fail(error(Errc::kInvalidArgument, "{} is not an error", code));
    }
    feed->feed->fail(Error(static_cast<Errc>(code), message == nullptr ? "" : message));
    return MKV_OK;
  });
}

int32_t mkv_feed_layers_ready(const mkv_feed* feed) {
  return feed == nullptr ? 0 : feed->feed->layers_ready();
}

mkv_status mkv_feed_wait_manifest(mkv_feed* feed, double timeout_s, mkv_manifest** out) {
  if (feed == nullptr) return null_argument("feed");
  if (out == nullptr) return null_argument("out");
  return guarded([&] {
    const auto deadline = Deadline::after(duration_of(timeout_s));
    return waited(feed->feed->wait_for_manifest(deadline), *feed->feed, out);
  });
}

mkv_status mkv_feed_wait_result(mkv_feed* feed, double timeout_s, mkv_manifest** out) {
  if (feed == nullptr) return null_argument("feed");
  if (out == nullptr) return null_argument("out");
  return guarded([&] {
    const auto deadline = Deadline::after(duration_of(timeout_s));
    return waited(feed->feed->wait_for_result(deadline), *feed->feed, out);
  });
}

mkv_status mkv_client_create(const mkv_client_options* given, mkv_client** out) {
  if (out == nullptr) return null_argument("out");
  return guarded([&]() -> mkv_status {
    mkv_client_options options{};
    if (given != nullptr) {
      const auto read = read_struct(given, "mkv_client_options", options);
      if (read != MKV_OK) return read;
    }
    if (options.transport < MKV_TRANSPORT_AUTO || options.transport > MKV_TRANSPORT_TCP ||
        options.num_threads < 0 || options.num_threads > 1024 || options.connections_per_rank < 0 ||
        options.pages_per_request < 0) {
      return fail(MKV_INVALID_ARGUMENT, "mkv_client_options: a field has no such value");
    }
    auto transport = transport_of(options);
    if (!transport.ok()) return fail(transport.error());
    const int32_t refetches = options.max_refetches;
    auto client = std::make_unique<mkv_client>();
    client->transport = std::move(*transport);
    client->client = std::make_unique<kvclient::PullClient>(
        *client->transport,
        kvclient::PullClientOptions{.num_threads = options.num_threads,
                                    .connections_per_rank = options.connections_per_rank,
                                    .pages_per_request = options.pages_per_request,
                                    .max_refetches = refetches == 0 ? 2 : std::max(refetches, 0),
                                    .same_host = options.transport == MKV_TRANSPORT_AUTO});
    *out = client.release();
    return MKV_OK;
  });
}

void mkv_client_destroy(mkv_client* client) {
  delete client;
}

mkv_status mkv_scores_get(mkv_client* client, const mkv_manifest* manifest, int32_t first_layer,
                          int32_t num_layers, int32_t first_kv_head, int32_t num_kv_heads,
                          float* scores, int64_t num_scores, double timeout_s) {
  return read_floats(client, manifest, scores, num_scores, [&](kvclient::KvClient& reader) {
    return reader.pull_scores(first_layer, num_layers, first_kv_head, num_kv_heads,
                              Deadline::after(duration_of(timeout_s)));
  });
}

mkv_status mkv_digests_get(mkv_client* client, const mkv_manifest* manifest, int32_t layer,
                           int32_t kv_head, int64_t first_page, int64_t num_pages, float* digests,
                           int64_t num_floats, double timeout_s) {
  return read_floats(client, manifest, digests, num_floats, [&](kvclient::KvClient& reader) {
    return reader.pull_digests(layer, kv_head, first_page, num_pages,
                               Deadline::after(duration_of(timeout_s)));
  });
}

mkv_status mkv_pull_start(mkv_client* client, const mkv_manifest* manifest,
                          const mkv_pull_request* given, mkv_pull** out) {
  if (client == nullptr) return null_argument("client");
  if (manifest == nullptr) return null_argument("manifest");
  if (out == nullptr) return null_argument("out");
  return guarded([&]() -> mkv_status {
    mkv_pull_request request{};
    if (const auto read = read_struct(given, "mkv_pull_request", request); read != MKV_OK) {
      return read;
    }
    auto pull_request = request_of(request);
    if (!pull_request.ok()) return fail(pull_request.error());
    auto pull = client->client->start(manifest->manifest, std::move(*pull_request));
    if (!pull.ok()) return fail(pull.error());
    *out = new mkv_pull{std::move(*pull)};
    return MKV_OK;
  });
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
