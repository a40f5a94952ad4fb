// SPDX-License-Identifier: Apache-2.0
#include "decode/layer_lookahead.h"

#include <algorithm>
#include <span>

#include "kernels/cpu/cpu_device.h"

namespace millrace::decode {

namespace {

// Pages taken in addition to the last token's number, because a prediction is not quite in the
// layer's own order.
constexpr int64_t kSpare = 2;
constexpr int64_t kSpareShare = 8;

}  // namespace

Result<std::unique_ptr<LayerLookahead>> LayerLookahead::start(const Parts& parts,
                                                              const CacheShape& shape,
                                                              Deadline deadline) {
  auto device = kernels::make_cpu_device({.num_threads = 1});
  MR_ASSIGN_OR_RETURN(auto forward, model::LayerForward::create(*device, *parts.weights, 1));
  std::unique_ptr<LayerLookahead> lookahead(
      new LayerLookahead(parts, shape, deadline, std::move(device), std::move(forward)));
  MR_RETURN_IF_ERROR(lookahead->allocate());
  lookahead->thread_ = std::thread([self = lookahead.get()] { self->run(); });
  return lookahead;
}

LayerLookahead::LayerLookahead(const Parts& parts, const CacheShape& shape, Deadline deadline,
                               std::unique_ptr<kernels::Device> device, model::LayerForward forward)
    : parts_(parts),
      shape_(shape),
      deadline_(deadline),
      device_(std::move(device)),
      forward_(std::move(forward)) {}

Result<void> LayerLookahead::allocate() {
  const int64_t row_bytes = int64_t{shape_.head_dim} * 4;
  MR_ASSIGN_OR_RETURN(q_, device_->allocate(shape_.num_query_heads * row_bytes));
  MR_ASSIGN_OR_RETURN(kv_, device_->allocate(2 * shape_.num_kv_heads * row_bytes));
  MR_ASSIGN_OR_RETURN(position_, device_->allocate(int64_t{sizeof(int32_t)}));
  return {};
}

LayerLookahead::~LayerLookahead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    came_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void LayerLookahead::begin_layer(int32_t layer, const float* hidden, int32_t position) {
  const std::lock_guard lock(mutex_);
  layer_ = layer;
  if (task_) ++stats_.dropped;
  task_.reset();
  // The pages of a window are known.
  if (layer + 1 >= shape_.num_layers || parts_.weights->config.window(layer + 1) != 0) return;
  task_ = {.layer = layer,
           .position = position,
           .hidden = {hidden, hidden + parts_.weights->config.hidden_size}};
  came_.notify_all();
}

void LayerLookahead::compare(int32_t layer, int32_t kv_head, std::span<const int32_t> pages) {
  const std::lock_guard lock(mutex_);
  if (foreseen_layer_ != layer) return;
  const auto& foreseen = foreseen_[static_cast<size_t>(kv_head)];
  stats_.pages_read += std::ssize(pages);
  stats_.pages_foreseen += std::count_if(pages.begin(), pages.end(), [&](int32_t page) {
    return foreseen[static_cast<size_t>(page)];
  });
}

LookaheadStats LayerLookahead::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void LayerLookahead::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    came_.wait(lock, [this] { return stopping_ || task_; });
    if (stopping_) return;
    const Task task = std::move(*task_);
    task_.reset();
    lock.unlock();
    const auto pages = predict(task);
    lock.lock();
    ++stats_.made;
    if (layer_ != task.layer) {
      ++stats_.dropped;
      continue;
    }
    foreseen_layer_ = task.layer + 1;
    foreseen_.assign(pages.size(), std::vector<bool>(static_cast<size_t>(shape_.num_pages())));
    for (size_t h = 0; h < pages.size(); ++h) {
      for (const int32_t page : pages[h]) foreseen_[h][static_cast<size_t>(page)] = true;
    }
    const auto names = names_of(task.layer + 1, pages);
    lock.unlock();
    // Whoever needs pages that could not be fetched asks for them again, and gets the error.
    (void)parts_.pool->bring(names, FetchUrgency::kPrediction, deadline_);
    lock.lock();
  }
}

// Takes the heads in turn, each head's first pages first, up to half the pool, so that what this
// layer reads has room.
std::vector<kvclient::PageName> LayerLookahead::names_of(
    int32_t layer, const std::vector<std::vector<int32_t>>& pages) const {
  const auto most = static_cast<size_t>(parts_.pool->num_slots() / 2);
  std::vector<kvclient::PageName> names;
  for (size_t i = 0; i < static_cast<size_t>(shape_.num_pages()) && names.size() < most; ++i) {
    for (size_t h = 0; h < pages.size() && names.size() < most; ++h) {
      if (i >= pages[h].size()) continue;
      names.push_back({layer, shape_.first_kv_head + static_cast<int32_t>(h), pages[h][i]});
    }
  }
  return names;
}

std::vector<std::vector<int32_t>> LayerLookahead::predict(const Task& task) {
  const int32_t layer = task.layer + 1;
  *position_.as<int32_t>() = task.position;
  // A norm over the heads of all ranks assumes that the other ranks' are like this one's, which is
  // good enough for a guess. Cannot fail.
  const auto sum_over_tp = [this](float* data, int64_t count) -> Result<void> {
    const auto size = static_cast<float>(parts_.weights->tp.size);
    for (float& sum : std::span(data, static_cast<size_t>(count))) sum *= size;
    return {};
  };
  (void)forward_.qkv(layer, task.hidden.data(), 1, position_.as<int32_t>(), shape_.num_tokens,
                     {.dtype = DType::kFloat32,
                      .q = q_.data(),
                      .k = kv_.data(),
                      .v = kv_.as<float>() + int64_t{shape_.num_kv_heads} * shape_.head_dim,
                      .kv_stride = 1},
                     sum_over_tp);
  rank_pages(kernel_, *parts_.rule, shape_, *parts_.digests, layer, q_.as<float>(), nullptr,
             rankings_);
  std::vector<std::vector<int32_t>> pages;
  for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
    const int64_t expected = parts_.attention->expected_pages(layer, h);
    const auto& order = rankings_[static_cast<size_t>(h)].order;
    const int64_t count =
        std::min<int64_t>(std::ssize(order), expected + std::max(kSpare, expected / kSpareShare));
    pages.emplace_back(order.begin(), order.begin() + count);
  }
  return pages;
}

}  // namespace millrace::decode
