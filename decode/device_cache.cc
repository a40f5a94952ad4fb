#include "decode/device_cache.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_device_pages.h"
#include "kvclient/order/hot_list.h"

namespace millrace::decode {

namespace {

// What is needed meanwhile goes before what of these pulls has not been asked of the ranks.
constexpr int64_t kFillBytes = 16 << 20;
// Pulls at a time, so that the next is under way where one ends.
constexpr int kFillers = 3;

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
  for (auto& filler : fillers_) filler.join();
}

Result<void> DeviceCache::wait(DecodeStart start, Deadline deadline) {
  SummaryPull pull({.transport = parts_.transport,
                    .manifest = parts_.manifest.get(),
                    .feed = parts_.feed.get(),
                    .first_kv_head = parts_.weights->shard.first_kv_head,
                    .num_kv_heads = parts_.weights->shard.num_kv_heads},
                   deadline);
  for (int32_t layer = 0; layer < parts_.weights->config.num_layers; ++layer) {
    MR_ASSIGN_OR_RETURN(const auto summary, pull.take());
    MR_RETURN_IF_ERROR(take_layer(layer, summary));
  }
  hot_left_ = std::ssize(hot_);
  left_ = hot_left_ + std::ssize(rest_);
  for (int i = 0; i < kFillers; ++i) fillers_.emplace_back([this] { fill(); });
  if (start == DecodeStart::kNeed) return {};
  return wait_for_fill(start == DecodeStart::kWhole, deadline);
}

// Its digests, and which of the pages that are kept are hot.
Result<void> DeviceCache::take_layer(int32_t layer, const LayerSummary& summary) {
  const int32_t first_head = parts_.weights->shard.first_kv_head;
  const auto num_pages = parts_.manifest->num_pages();
  for (int32_t h = 0; h < std::ssize(summary.digests); ++h) {
    MR_RETURN_IF_ERROR(pages_->set_digests(layer, h, summary.digests[static_cast<size_t>(h)]));
    const auto is_hot = kvclient::hot_list(
        std::span(summary.scores)
            .subspan(static_cast<size_t>(h * num_pages), static_cast<size_t>(num_pages)),
        hot_share_);
    for (int64_t page = 0; page < num_pages; ++page) {
      if (!parts_.manifest->has_page(layer, first_head + h, page)) continue;
      (is_hot[static_cast<size_t>(page)] ? hot_ : rest_).push_back({layer, first_head + h, page});
    }
  }
  return {};
}

// The next pages that nobody has begun with: hot ones first. Empty: there are none, or it is over.
std::span<const kvclient::PageName> DeviceCache::next_batch() {
  const auto batch =
      static_cast<size_t>(std::max<int64_t>(8, kFillBytes / parts_.manifest->page_bytes()));
  const std::lock_guard lock(mutex_);
  if (stopping_ || failure_) return {};
  const bool of_hot = next_ < hot_.size();
  const auto names = std::span<const kvclient::PageName>(of_hot ? hot_ : rest_)
                         .subspan(of_hot ? next_ : next_ - hot_.size());
  const auto taken = names.first(std::min(batch, names.size()));
  next_ += taken.size();
  return taken;
}

void DeviceCache::fill() {
  for (auto names = next_batch(); !names.empty(); names = next_batch()) {
    const bool of_hot = names.data() >= hot_.data() && names.data() < hot_.data() + hot_.size();
    const auto came = host_->bring(names, FetchUrgency::kFill, deadline_);
    const std::lock_guard lock(mutex_);
    if (came.ok()) {
      left_ -= std::ssize(names);
      if (of_hot) hot_left_ -= std::ssize(names);
    } else {
      failure_ = came.error();
    }
    changed_.notify_all();
  }
}

Result<void> DeviceCache::wait_for_fill(bool whole, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const int64_t& left = whole ? left_ : hot_left_;
  if (!changed_.wait_until(lock, deadline.when(), [&] { return left == 0 || failure_; })) {
    return Error(Errc::kDeadlineExceeded, "what decoding begins with did not come in time");
  }
  if (left > 0) return *failure_;
  return {};
}

}  // namespace millrace::decode
