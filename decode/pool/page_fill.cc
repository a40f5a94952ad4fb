// SPDX-License-Identifier: Apache-2.0
#include "decode/pool/page_fill.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::decode {

namespace {

constexpr int kPulls = 3;
// Needed pages go before the part of a pull that has not been requested from the ranks yet.
constexpr int64_t kPullBytes = 16 << 20;

}  // namespace

PageFill::~PageFill() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void PageFill::start() {
  MR_CHECK(threads_.empty(), "the fill has been started");
  for (int i = 0; i < kPulls; ++i) threads_.emplace_back([this] { run(); });
}

void PageFill::add_layer(std::vector<kvclient::PageName> hot,
                         std::vector<kvclient::PageName> rest) {
  const std::lock_guard lock(mutex_);
  layer_left_[static_cast<size_t>(num_added_++)] = std::ssize(hot) + std::ssize(rest);
  hot_left_ += std::ssize(hot);
  if (!hot.empty()) hot_.push_back({std::move(hot)});
  if (!rest.empty()) rest_.push_back({std::move(rest)});
  changed_.notify_all();
}

PageFill::Batch PageFill::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return stopping_ || failure_ || !hot_.empty() || !rest_.empty() || num_added_ == num_layers_;
  });
  if (stopping_ || failure_ || (hot_.empty() && rest_.empty())) return {};
  Batch batch{.names = {}, .hot = !hot_.empty()};
  auto& runs = batch.hot ? hot_ : rest_;
  Run& run = runs.front();
  const auto most = static_cast<size_t>(std::max<int64_t>(8, kPullBytes / pages_.page_bytes()));
  const auto names = std::span(run.names).subspan(run.begun);
  const auto taken = names.first(std::min(most, names.size()));
  batch.names.assign(taken.begin(), taken.end());
  run.begun += taken.size();
  if (run.begun == run.names.size()) runs.pop_front();
  return batch;
}

void PageFill::run() {
  for (Batch batch = next(); !batch.names.empty(); batch = next()) {
    const auto came = pages_.bring(batch.names, FetchUrgency::kFill, deadline_);
    const std::lock_guard lock(mutex_);
    if (came.ok()) {
      for (const auto& name : batch.names) --layer_left_[static_cast<size_t>(name.layer)];
      if (batch.hot) hot_left_ -= std::ssize(batch.names);
    } else if (!failure_) {
      failure_ = came.error();
    }
    changed_.notify_all();
  }
}

int32_t PageFill::layers_here() const {
  const std::lock_guard lock(mutex_);
  return count_layers_here();
}

int32_t PageFill::count_layers_here() const {
  const auto left = std::span(layer_left_).first(static_cast<size_t>(num_added_));
  return static_cast<int32_t>(std::ranges::find_if(left, std::identity()) - left.begin());
}

Result<void> PageFill::wait_for_hot(Deadline deadline) {
  return wait([this] { return num_added_ == num_layers_ && hot_left_ == 0; }, deadline);
}

Result<void> PageFill::wait_for_layers(int32_t num_layers, Deadline deadline) {
  return wait([this, num_layers] { return count_layers_here() >= num_layers; }, deadline);
}

Result<void> PageFill::wait(const std::function<bool()>& is_there, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.when(), [&] { return is_there() || failure_; })) {
    return Error(Errc::kDeadlineExceeded, "what decoding begins with did not come in time");
  }
  if (!is_there()) return *failure_;
  return {};
}

}  // namespace millrace::decode
