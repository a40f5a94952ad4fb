// SPDX-License-Identifier: Apache-2.0
// The C++20 interface of Millrace's KV client: owners of millrace_kv.h's handles, and exceptions in
// place of its statuses. It needs nothing but that header and libmillrace_kv.so, so an engine may
// use any compiler. docs/kv-client.md is its guide; rules for threads, memory and versions are those
// at the top of millrace_kv.h.
//
//   kv::Client client;
//   const kv::Manifest manifest(response);
//   kv::PullRequest request(manifest);
//   request.to(block_ids, layers);
//   kv::Pull pull = client.start(manifest, request);
//   pull.wait();
#pragma once

#include <millrace/millrace_kv.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::kv {

using Seconds = std::chrono::duration<double>;

inline constexpr Seconds kForever{std::numeric_limits<double>::infinity()};

// What a call failed with: "not_found: what, where and the numbers".
class Error : public std::runtime_error {
 public:
  Error(mkv_status status, const std::string& message)
      : std::runtime_error(std::string(mkv_status_name(status)) + ": " + message),
        status_(status) {}

  mkv_status status() const { return status_; }

 private:
  mkv_status status_;
};

// False for MKV_PENDING, true for MKV_OK; throws Error for all else.
inline bool check(mkv_status status) {
  if (status != MKV_OK && status != MKV_PENDING) throw Error(status, mkv_last_error());
  return status == MKV_OK;
}

// A structure of the C interface, zero but for its size.
template <typename Struct>
struct Sized : Struct {
  Sized() : Struct{} { this->struct_bytes = sizeof(Struct); }
};

using ManifestInfo = Sized<mkv_manifest_info>;
using ShardInfo = Sized<mkv_shard_info>;
using ClientOptions = Sized<mkv_client_options>;
using PullStats = Sized<mkv_pull_stats>;
using PageRequest = Sized<mkv_page_request>;  // pages, num_pages, dtype and timeout_s must be set

namespace detail {

template <typename Handle, void (*destroy)(Handle*)>
struct Destroyer {
  void operator()(Handle* handle) const { destroy(handle); }
};

template <typename Handle, void (*destroy)(Handle*)>
using Owner = std::unique_ptr<Handle, Destroyer<Handle, destroy>>;

}  // namespace detail

// Where a cache is, and its shape.
class Manifest {
 public:
  // From the answer of POST /v1/prefill, the data of an event, or a bare manifest.
  explicit Manifest(std::string_view json) {
    mkv_manifest* made = nullptr;
    check(mkv_manifest_parse(json.data(), json.size(), &made));
    take(made);
  }
  // Becomes the owner of a handle.
  explicit Manifest(mkv_manifest* handle) { take(handle); }

  const mkv_manifest* get() const { return handle_.get(); }
  // Its texts live as long as this.
  const ManifestInfo& info() const { return info_; }
  ShardInfo shard(int32_t index) const {
    ShardInfo shard;
    check(mkv_manifest_shard(get(), index, &shard));
    return shard;
  }
  // False if the request dropped the page (kv_budget).
  bool has_page(int32_t layer, int32_t kv_head, int64_t page) const {
    return mkv_manifest_has_page(get(), layer, kv_head, page) != 0;
  }
  struct Scales {
    float k = 1, v = 1;
  };
  // Of a cache in 8-bit floats.
  Scales scales(int32_t layer, int32_t kv_head) const {
    Scales scales;
    check(mkv_manifest_head_scales(get(), layer, kv_head, &scales.k, &scales.v));
    return scales;
  }
  // For another process to parse.
  std::string json() const {
    std::string text(mkv_manifest_json(get(), nullptr, 0), '\0');
    mkv_manifest_json(get(), text.data(), text.size() + 1);
    return text;
  }

 private:
  void take(mkv_manifest* handle) {
    handle_.reset(handle);
    check(mkv_manifest_get(handle, &info_));
  }

  detail::Owner<mkv_manifest, mkv_manifest_destroy> handle_;
  ManifestInfo info_;
};

// What the events of a prefill tell pulls that run during it.
class Feed {
 public:
  Feed() {
    mkv_feed* made = nullptr;
    check(mkv_feed_create(&made));
    handle_.reset(made);
  }

  mkv_feed* get() const { return handle_.get(); }
  // The next bytes of the events, cut anywhere. Throws the request's error.
  void write(std::string_view bytes) { check(mkv_feed_write(get(), bytes.data(), bytes.size())); }
  void set_layers_ready(int32_t num_layers) { check(mkv_feed_set_layers_ready(get(), num_layers)); }
  void fail(mkv_status code, const std::string& message) {
    check(mkv_feed_fail(get(), code, message.c_str()));
  }
  int32_t layers_ready() const { return mkv_feed_layers_ready(get()); }
  // To pull with; none if no event has brought it in time.
  std::optional<Manifest> wait_manifest(Seconds timeout = kForever) {
    return wait(mkv_feed_wait_manifest, timeout);
  }
  // Of the finished request.
  std::optional<Manifest> wait_result(Seconds timeout = kForever) {
    return wait(mkv_feed_wait_result, timeout);
  }

 private:
  std::optional<Manifest> wait(mkv_status (*wait_for)(mkv_feed*, double, mkv_manifest**),
                               Seconds timeout) {
    mkv_manifest* found = nullptr;
    if (!check(wait_for(get(), timeout.count(), &found))) return std::nullopt;
    return std::optional<Manifest>(std::in_place, found);
  }

  detail::Owner<mkv_feed, mkv_feed_destroy> handle_;
};

// What to pull. Begins as the whole cache, in its dtype, within ten minutes.
struct PullRequest : Sized<mkv_pull_request> {
  explicit PullRequest(const Manifest& manifest, int32_t blocks_of_tokens = 64) {
    const auto& info = manifest.info();
    num_layers = info.num_layers;
    num_kv_heads = info.num_kv_heads;
    dtype = info.dtype;
    head_dim = info.head_dim;
    block_tokens = blocks_of_tokens;
    num_tokens = info.num_tokens;
    timeout_s = 600;
  }

  // Where it goes. Both live until the pull has started.
  PullRequest& to(std::span<const int32_t> ids, std::span<const mkv_layer_destination> places) {
    block_ids = ids.data();
    num_blocks = static_cast<int64_t>(ids.size());
    layers = places.data();
    num_layers = static_cast<int32_t>(places.size());
    return *this;
  }
};

// A pull that goes on, or has ended. Its end cancels it, and waits until nothing more is written.
class Pull {
 public:
  // Becomes the owner of a handle.
  explicit Pull(mkv_pull* handle) : handle_(handle) {}

  mkv_pull* get() const { return handle_.get(); }
  // Each returns whether all has arrived and is checked; false if the time was too short.
  bool wait(Seconds timeout = kForever) { return check(mkv_pull_wait(get(), timeout.count())); }
  bool wait_layer(int32_t layer, Seconds timeout = kForever) {
    return check(mkv_pull_wait_layer(get(), layer, timeout.count()));
  }
  bool wait_hot_layer(int32_t layer, Seconds timeout = kForever) {
    return check(mkv_pull_wait_hot_layer(get(), layer, timeout.count()));
  }
  void cancel() { mkv_pull_cancel(get()); }
  PullStats stats() const {
    PullStats stats;
    check(mkv_pull_get_stats(get(), &stats));
    return stats;
  }

 private:
  detail::Owner<mkv_pull, mkv_pull_destroy> handle_;
};

// Threads that pull, and their connections. One for a process, made after fork().
class Client {
 public:
  explicit Client(const ClientOptions& options = {}) {
    if (mkv_version() >> 16 != MKV_VERSION_MAJOR || (mkv_version() & 0xFFFF) < MKV_VERSION_MINOR) {
      throw Error(MKV_UNSUPPORTED, "libmillrace_kv.so is not of this header's version");
    }
    mkv_client* made = nullptr;
    check(mkv_client_create(&options, &made));
    handle_.reset(made);
  }

  mkv_client* get() const { return handle_.get(); }

  // Return at once; the destinations belong to the pull until it has ended.
  Pull start(const Manifest& manifest, const mkv_pull_request& request) {
    mkv_pull* started = nullptr;
    check(mkv_pull_start(get(), manifest.get(), &request, &started));
    return Pull(started);
  }
  Pull start(const Manifest& manifest, const mkv_page_request& request) {
    mkv_pull* started = nullptr;
    check(mkv_pull_start_pages(get(), manifest.get(), &request, &started));
    return Pull(started);
  }

  // Of all layers and heads: [layers][kv heads][pages].
  std::vector<float> scores(const Manifest& manifest, Seconds timeout) {
    const auto& info = manifest.info();
    std::vector<float> scores(static_cast<size_t>(info.num_layers) *
                              static_cast<size_t>(info.num_kv_heads) *
                              static_cast<size_t>(info.num_pages));
    check(mkv_scores_get(get(), manifest.get(), 0, info.num_layers, 0, info.num_kv_heads,
                         scores.data(), static_cast<int64_t>(scores.size()), timeout.count()));
    return scores;
  }
  // Of all pages of one layer and kv head: [pages][minimum, maximum, mean deviation][head dim].
  std::vector<float> digests(const Manifest& manifest, int32_t layer, int32_t kv_head,
                             Seconds timeout) {
    const auto& info = manifest.info();
    std::vector<float> digests(static_cast<size_t>(info.num_pages) * 3 *
                               static_cast<size_t>(info.head_dim));
    check(mkv_digests_get(get(), manifest.get(), layer, kv_head, 0, info.num_pages, digests.data(),
                          static_cast<int64_t>(digests.size()), timeout.count()));
    return digests;
  }

 private:
  detail::Owner<mkv_client, mkv_client_destroy> handle_;
};

}  // namespace millrace::kv
