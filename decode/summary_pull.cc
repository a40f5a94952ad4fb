// SPDX-License-Identifier: Apache-2.0
#include "decode/summary_pull.h"

#include <algorithm>

#include "decode/attention/page_digests.h"

namespace millrace::decode {

namespace {

// Number of connections. It also bounds the layers that have come and are not taken.
constexpr int32_t kThreads = 8;
// A reply of this many digests is as large as one of some megabytes of pages.
constexpr int32_t kDigestsPerRequest = 1024;
// How often, while waiting for a layer, a thread checks whether it is to end.
constexpr std::chrono::milliseconds kWaitStep{200};

}  // namespace

SummaryPull::SummaryPull(const Parts& parts, Deadline deadline)
    : parts_(parts),
      deadline_(deadline),
      layers_(static_cast<size_t>(parts.manifest->layout.num_layers)) {
  const auto count = std::min(kThreads, parts.manifest->layout.num_layers);
  for (int32_t i = 0; i < count; ++i) threads_.emplace_back([this] { pull_layers(); });
}

SummaryPull::~SummaryPull() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

Result<LayerSummary> SummaryPull::take() {
  std::unique_lock lock(mutex_);
  auto& layer = layers_[static_cast<size_t>(taken_)];
  changed_.wait(lock, [&] { return layer.has_value() || failure_.has_value(); });
  if (!layer) return *failure_;
  ++taken_;
  changed_.notify_all();
  return *std::exchange(layer, std::nullopt);
}

void SummaryPull::pull_layers() {
  kvclient::KvClient client(*parts_.transport, *parts_.manifest,
                            {.pages_per_request = kDigestsPerRequest});
  while (true) {
    int32_t layer = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || failure_ || begun_ < taken_ + 2 * kThreads; });
      if (stopping_ || failure_ || begun_ == std::ssize(layers_)) return;
      layer = begun_++;
    }
    auto summary = pull(layer, client);
    const std::lock_guard lock(mutex_);
    if (summary.ok()) {
      layers_[static_cast<size_t>(layer)] = std::move(*summary);
    } else if (!failure_) {
      failure_ = summary.error();
    }
    changed_.notify_all();
  }
}

Result<LayerSummary> SummaryPull::pull(int32_t layer, kvclient::KvClient& client) {
  while (true) {
    const auto came =
        parts_.feed->wait_for_layer(layer, deadline_.earlier_of(Deadline::after(kWaitStep)));
    if (came.ok()) break;
    if (came.error().code != Errc::kDeadlineExceeded || deadline_.passed()) return came.error();
    const std::lock_guard lock(mutex_);
    if (stopping_) return Error(Errc::kCancelled, "the pull of digests is over");
  }
  const auto num_pages = client.num_pages();
  LayerSummary summary;
  MR_ASSIGN_OR_RETURN(summary.scores, client.pull_scores(layer, 1, parts_.first_kv_head,
                                                         parts_.num_kv_heads, deadline_));
  PageDigests checked(1, 1, num_pages, parts_.manifest->layout.head_dim);
  for (int32_t h = 0; h < parts_.num_kv_heads; ++h) {
    MR_ASSIGN_OR_RETURN(auto digests, client.pull_digests(layer, parts_.first_kv_head + h, 0,
                                                          num_pages, deadline_));
    MR_RETURN_IF_ERROR(checked.set(0, 0, digests));
    summary.digests.push_back(std::move(digests));
    for (int64_t page = 0; page < num_pages; ++page) {
      if (parts_.manifest->has_page(layer, parts_.first_kv_head + h, page)) continue;
      summary.scores[static_cast<size_t>(h * num_pages + page)] = 0;
    }
  }
  return summary;
}

}  // namespace millrace::decode
