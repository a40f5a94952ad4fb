// SPDX-License-Identifier: Apache-2.0
#include "decode/device_cache.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_device_pages.h"
#include "kvclient/order/hot_list.h"

namespace millrace::decode {

Result<std::unique_ptr<DeviceCache>> DeviceCache::open(const Parts& parts,
                                                       const ProgressiveOptions& options,
                                                       double hot_share, Deadline deadline,
                                                       kernels::HostBuffer memory) {
  std::unique_ptr<DeviceCache> cache(new DeviceCache(parts, hot_share, deadline));
  cache->memory_ = std::move(memory);
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
  const int64_t bytes = shape.all_pages() * shape.page_bytes();
  if (memory_.bytes() < bytes) {
    memory_ = {};
    MR_ASSIGN_OR_RETURN(memory_, parts_.device->allocate_host(bytes));
  }
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

Result<void> DeviceCache::wait(DecodeStart start, Deadline deadline) {
  const int32_t num_layers = parts_.weights->config.num_layers;
  SummaryPull pull({.transport = parts_.transport,
                    .manifest = parts_.manifest.get(),
                    .feed = parts_.feed.get(),
                    .first_kv_head = parts_.weights->shard.first_kv_head,
                    .num_kv_heads = parts_.weights->shard.num_kv_heads},
                   deadline);
  fill_.emplace(*host_, num_layers, deadline_);
  // During a prefill pages can come at the same time; after it, digests come first.
  const bool is_done = parts_.feed->layers_ready() == num_layers;
  if (!is_done) fill_->start();
  int32_t num_filled = 0;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    MR_ASSIGN_OR_RETURN(const auto summary, pull.take());
    MR_RETURN_IF_ERROR(take_layer(layer, summary));
    for (; num_filled < fill_->layers_here(); ++num_filled) pages_->fill_layer(num_filled);
  }
  if (is_done) fill_->start();
  if (start == DecodeStart::kHot) return fill_->wait_for_hot(deadline);
  if (start == DecodeStart::kWhole) {
    for (; num_filled < num_layers; ++num_filled) {
      MR_RETURN_IF_ERROR(fill_->wait_for_layers(num_filled + 1, deadline));
      pages_->fill_layer(num_filled);
    }
  }
  return {};
}

// Takes a layer's digests, and decides which of the kept pages are hot.
Result<void> DeviceCache::take_layer(int32_t layer, const LayerSummary& summary) {
  const int32_t first_head = parts_.weights->shard.first_kv_head;
  const auto num_pages = parts_.manifest->num_pages();
  std::vector<kvclient::PageName> hot, rest;
  for (int32_t h = 0; h < std::ssize(summary.digests); ++h) {
    MR_RETURN_IF_ERROR(pages_->set_digests(layer, h, summary.digests[static_cast<size_t>(h)]));
    const auto is_hot = kvclient::hot_list(
        std::span(summary.scores)
            .subspan(static_cast<size_t>(h * num_pages), static_cast<size_t>(num_pages)),
        hot_share_);
    for (int64_t page = 0; page < num_pages; ++page) {
      if (!parts_.manifest->has_page(layer, first_head + h, page)) continue;
      (is_hot[static_cast<size_t>(page)] ? hot : rest).push_back({layer, first_head + h, page});
    }
  }
  fill_->add_layer(std::move(hot), std::move(rest));
  return {};
}

}  // namespace millrace::decode
