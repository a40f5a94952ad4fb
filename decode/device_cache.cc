#include "decode/device_cache.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_device_pages.h"
#include "kvclient/kv_client.h"
#include "kvclient/order/hot_list.h"

namespace millrace::decode {

namespace {

// A reply of digests is that of some megabytes of pages.
constexpr int32_t kDigestsPerRequest = 1024;
// A pull at a time: what is needed meanwhile goes before what of it has not been asked of the ranks.
constexpr int64_t kFillBytes = 16 << 20;

}  // namespace

Result<std::unique_ptr<DeviceCache>> DeviceCache::open(const Parts& parts,
                                                       const ProgressiveOptions& options,
                                                       double hot_share, Deadline deadline) {
  std::unique_ptr<DeviceCache> cache(new DeviceCache(parts, hot_share, deadline));
  MR_RETURN_IF_ERROR(cache->make_pages(options));
  return cache;
}

Result<void> DeviceCache::make_pages(const ProgressiveOptions& options) {
  const auto& manifest = *parts_.manifest;
  auto shape = device_pages_shape(*parts_.weights, manifest.num_tokens);
  if (manifest.kept_pages) shape.kept = &*manifest.kept_pages;
  if (manifest.is_float8()) shape.float8 = &manifest.layout.scales;
  const int64_t kept = shape.kept_pages();
  const int64_t room =
      options.pages_memory_bytes == 0 ? kept : options.pages_memory_bytes / shape.page_bytes();
  if (options.predict) {
    MR_ASSIGN_OR_RETURN(ahead_,
                        kernels::make_cuda_device({.index = parts_.device->gpu_stream()->gpu}));
  }
  MR_ASSIGN_OR_RETURN(memory_,
                      parts_.device->allocate_host(shape.all_pages() * shape.page_bytes()));
  const auto log_odds = static_cast<float>(std::log((1 - options.mass) / options.mass));
  MR_ASSIGN_OR_RETURN(pages_, kernels::make_cuda_device_pages(
                                  *parts_.device, ahead_.get(), shape,
                                  {.host = memory_.as<std::byte>(),
                                   .num_slots = std::min(room, kept),
                                   .rule = {.log_odds = log_odds, .proven = options.proven}}));
  host_ = std::make_unique<HostPages>(
      source_, HostPages::Options{.num_layers = shape.num_layers,
                                  .first_kv_head = parts_.weights->shard.first_kv_head,
                                  .num_kv_heads = shape.num_kv_heads,
                                  .num_pages = shape.num_pages(),
                                  .page_bytes = shape.page_bytes(),
                                  .memory = memory_.as<std::byte>(),
                                  .num_kept = kept});
  MR_ASSIGN_OR_RETURN(prompt_, DevicePrompt::create(*pages_, ahead_.get(), *parts_.weights,
                                                    manifest.num_tokens, host_.get()));
  return {};
}

DeviceCache::~DeviceCache() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

Result<void> DeviceCache::wait(DecodeStart start, Deadline deadline) {
  kvclient::KvClient client(*parts_.transport, *parts_.manifest,
                            {.pages_per_request = kDigestsPerRequest});
  for (int32_t layer = 0; layer < parts_.weights->config.num_layers; ++layer) {
    MR_RETURN_IF_ERROR(parts_.feed->wait_for_layer(layer, deadline));
    MR_RETURN_IF_ERROR(take_layer(client, layer));
  }
  thread_ = std::thread([this] { fill(); });
  if (start == DecodeStart::kNeed) return {};
  return wait_for_fill(start == DecodeStart::kWhole, deadline);
}

// Its digests, and which of the pages that are kept are hot.
Result<void> DeviceCache::take_layer(kvclient::KvClient& client, int32_t layer) {
  const int32_t first_head = parts_.weights->shard.first_kv_head;
  const int32_t num_heads = parts_.weights->shard.num_kv_heads;
  const auto num_pages = client.num_pages();
  PageDigests checked(1, 1, num_pages, parts_.weights->config.head_dim);
  MR_ASSIGN_OR_RETURN(auto scores, client.pull_scores(layer, 1, first_head, num_heads, deadline_));
  for (int32_t h = 0; h < num_heads; ++h) {
    MR_ASSIGN_OR_RETURN(const auto digests,
                        client.pull_digests(layer, first_head + h, 0, num_pages, deadline_));
    MR_RETURN_IF_ERROR(checked.set(0, 0, digests));
    MR_RETURN_IF_ERROR(pages_->set_digests(layer, h, digests));
    const auto row = std::span(scores).subspan(static_cast<size_t>(h * num_pages),
                                               static_cast<size_t>(num_pages));
    const auto has_page = [&](int64_t page) {
      return parts_.manifest->has_page(layer, first_head + h, page);
    };
    for (int64_t page = 0; page < num_pages; ++page) {
      if (!has_page(page)) row[static_cast<size_t>(page)] = 0;
    }
    const auto is_hot = kvclient::hot_list(row, hot_share_);
    for (int64_t page = 0; page < num_pages; ++page) {
      if (!has_page(page)) continue;
      (is_hot[static_cast<size_t>(page)] ? hot_ : rest_).push_back({layer, first_head + h, page});
    }
  }
  return {};
}

void DeviceCache::fill() {
  const auto batch =
      static_cast<size_t>(std::max<int64_t>(8, kFillBytes / parts_.manifest->page_bytes()));
  for (const bool hot : {true, false}) {
    const auto names = std::span<const kvclient::PageName>(hot ? hot_ : rest_);
    for (size_t first = 0; first < names.size(); first += batch) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
      }
      const auto came = host_->bring(names.subspan(first, std::min(batch, names.size() - first)),
                                     FetchUrgency::kFill, deadline_);
      if (came.ok()) continue;
      const std::lock_guard lock(mutex_);
      failure_ = came.error();
      changed_.notify_all();
      return;
    }
    const std::lock_guard lock(mutex_);
    (hot ? hot_done_ : all_done_) = true;
    changed_.notify_all();
  }
}

Result<void> DeviceCache::wait_for_fill(bool whole, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool& done = whole ? all_done_ : hot_done_;
  if (!changed_.wait_until(lock, deadline.when(), [&] { return done || failure_; })) {
    return Error(Errc::kDeadlineExceeded, "what decoding begins with did not come in time");
  }
  if (!done) return *failure_;
  return {};
}

}  // namespace millrace::decode
