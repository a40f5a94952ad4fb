// SPDX-License-Identifier: Apache-2.0
#include "calibrate/layer_trial.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace millrace::calibrate {

using kernels::IndexView;

namespace {

// For one layer, whatever is tried on it: far more than a layer takes.
constexpr std::chrono::minutes kLayerTimeout{60};

plan::HeadPlan plan_with_room(int32_t num_heads, std::span<const plan::HeadPattern> widest) {
  plan::HeadPlan plan(static_cast<int32_t>(widest.size()) + 1, num_heads, {});
  for (size_t i = 0; i < widest.size(); ++i) {
    for (int32_t head = 0; head < num_heads; ++head) {
      plan.at(static_cast<int32_t>(i) + 1, head) = widest[i];
    }
  }
  return plan;
}

void widen(const void* values, DType dtype, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = dtype == DType::kBFloat16 ? to_float(static_cast<const BFloat16*>(values)[i])
                                       : to_float(static_cast<const Float16*>(values)[i]);
  }
}

double norm(double sum_of_squares) {
  return std::sqrt(sum_of_squares);
}

double row_error(std::span<const float> out, std::span<const float> dense) {
  double difference = 0, whole = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double wanted = dense[i];
    difference += (out[i] - wanted) * (out[i] - wanted);
    whole += wanted * wanted;
  }
  if (difference == 0) return 0;
  return whole == 0 ? 1 : norm(difference) / norm(whole);
}

}  // namespace

LayerTrial::LayerTrial(kernels::Device& device, const AttentionShape& shape, int64_t num_tokens,
                       std::span<const plan::HeadPattern> widest)
    : device_(device),
      shape_(shape),
      num_tokens_(num_tokens),
      tiles_(kernels::tile_rows(num_tokens)),
      plan_(plan_with_room(shape.num_query_heads, widest)) {}

Result<std::unique_ptr<LayerTrial>> LayerTrial::create(kernels::Device& device,
                                                       comm::DeviceCommunicator& alone,
                                                       const AttentionShape& shape,
                                                       int64_t num_tokens,
                                                       std::span<const plan::HeadPattern> widest) {
  MR_CHECK(alone.size() == 1, "a trial on {} ranks", alone.size());
  std::unique_ptr<LayerTrial> trial(new LayerTrial(device, shape, num_tokens, widest));
  MR_RETURN_IF_ERROR(trial->allocate(alone));
  return trial;
}

Result<void> LayerTrial::allocate(comm::DeviceCommunicator& alone) {
  const int32_t num_heads = shape_.num_query_heads;
  const int64_t elements = num_tokens_ * num_heads * shape_.head_dim;
  MR_ASSIGN_OR_RETURN(out_, device_.allocate(elements * dtype_bytes(shape_.dtype)));
  MR_ASSIGN_OR_RETURN(out_on_host_, device_.allocate_host(out_.bytes()));
  dense_.resize(static_cast<size_t>(elements));
  if (shape_.dtype != DType::kFloat32) widened_.resize(static_cast<size_t>(elements));
  MR_ASSIGN_OR_RETURN(
      index_, engine::LayerIndex::create(device_, plan_, 0, num_heads, num_tokens_, tiles_));
  MR_ASSIGN_OR_RETURN(auto builder, engine::IndexBuilder::create(device_, alone, plan_,
                                                                 {.first = 0, .count = num_heads},
                                                                 num_tokens_, index_.view().shape));
  builder_ = std::make_unique<engine::IndexBuilder>(std::move(builder));
  return {};
}

Result<void> LayerTrial::synchronize() {
  return device_.synchronize(Deadline::after(kLayerTimeout));
}

Result<void> LayerTrial::take(const engine::LocalQueries& queries, const kernels::KvSlab& kv,
                              const float* sinks) {
  MR_CHECK(queries.num_rows == num_tokens_ && kv.num_tokens == num_tokens_ &&
               queries.num_query_heads == shape_.num_query_heads &&
               kv.head_dim == shape_.head_dim && kv.dtype == shape_.dtype,
           "a layer of {} rows and {} heads, for a trial of {} and {}", queries.num_rows,
           queries.num_query_heads, num_tokens_, shape_.num_query_heads);
  queries_ = queries;
  kv_ = kv;
  sinks_ = sinks;
  const std::vector<plan::HeadPattern> all_dense(static_cast<size_t>(shape_.num_query_heads));
  MR_RETURN_IF_ERROR(build(all_dense));
  attend();
  MR_ASSIGN_OR_RETURN(const auto dense, output());
  std::copy(dense.begin(), dense.end(), dense_.begin());
  return {};
}

Result<void> LayerTrial::build(std::span<const plan::HeadPattern> patterns) {
  MR_CHECK(std::ssize(patterns) == shape_.num_query_heads, "{} patterns for {} heads",
           patterns.size(), shape_.num_query_heads);
  has_blocks_ = false;
  for (int32_t head = 0; head < shape_.num_query_heads; ++head) {
    const auto& pattern = patterns[static_cast<size_t>(head)];
    plan_.at(0, head) = pattern;
    has_blocks_ = has_blocks_ || plan::uses_blocks(pattern.pattern);
  }
  const int64_t num_last = std::min(kernels::kLastRows, num_tokens_);
  const int64_t row_bytes =
      int64_t{shape_.num_query_heads} * shape_.head_dim * dtype_bytes(shape_.dtype);
  const kernels::LastRows last{
      .q = static_cast<const std::byte*>(queries_.q) + (num_tokens_ - num_last) * row_bytes,
      .num_rows = num_last,
      .first_position = num_tokens_ - num_last,
      .num_query_heads = shape_.num_query_heads,
      .scale = queries_.scale};
  return builder_->build(0, queries_, tiles_, last, kv_, index_.view(),
                         Deadline::after(kLayerTimeout));
}

void LayerTrial::attend() {
  device_.attention({.q = queries_.q,
                     .num_rows = num_tokens_,
                     .num_query_heads = shape_.num_query_heads,
                     .scale = queries_.scale,
                     .kv = kv_,
                     .tiles = tiles_,
                     .index = index_.view(),
                     .sinks = sinks_,
                     .out = out_.data()});
}

Result<std::vector<HeadWork>> LayerTrial::count() {
  MR_ASSIGN_OR_RETURN(const auto index, host_index());
  std::vector<HeadWork> work;
  for (int32_t head = 0; head < shape_.num_query_heads; ++head) {
    work.push_back(count_work(index.head(head), tiles_, num_tokens_));
  }
  return work;
}

Result<IndexView> LayerTrial::host_index() {
  IndexView index = index_.view();
  if (device_.info().host_memory) {
    MR_RETURN_IF_ERROR(synchronize());
    return index;
  }
  const auto fetch = [this]<typename T>(T*& data, std::vector<T>& host, int64_t count) {
    host.resize(static_cast<size_t>(std::max<int64_t>(count, 1)));
    device_.copy(host.data(), data, count * int64_t{sizeof(T)});
    data = host.data();
  };
  const auto& shape = index.shape;
  const int64_t heads = shape.num_heads;
  fetch(index.bands, bands_, heads * shape.max_bands);
  fetch(index.num_bands, num_bands_, heads);
  fetch(index.columns, columns_, heads * shape.max_columns);
  fetch(index.num_columns, num_columns_, heads);
  if (has_blocks_) {
    fetch(index.block_count, block_count_, heads * shape.num_tiles);
    fetch(index.block_begin, block_begin_, heads * shape.num_tiles);
    fetch(index.blocks, blocks_, heads * shape.max_blocks);
  } else {
    index.shape.num_tiles = 0;  // no head has lists by tile
  }
  MR_RETURN_IF_ERROR(synchronize());
  return index;
}

// What attend() left, in host memory.
Result<std::span<const float>> LayerTrial::output() {
  device_.copy(out_on_host_.as<std::byte>(), out_.data(), out_.bytes());
  MR_RETURN_IF_ERROR(synchronize());
  if (shape_.dtype == DType::kFloat32) {
    return std::span<const float>(out_on_host_.as<float>(), dense_.size());
  }
  widen(out_on_host_.as<std::byte>(), shape_.dtype, widened_);
  return std::span<const float>(widened_);
}

Result<std::vector<double>> LayerTrial::errors() {
  MR_ASSIGN_OR_RETURN(const auto out, output());
  const auto head_dim = static_cast<size_t>(shape_.head_dim);
  const auto num_heads = static_cast<size_t>(shape_.num_query_heads);
  const auto num_rows = static_cast<size_t>(kernels::first_dense_position(num_tokens_));
  std::vector<double> errors(num_heads, 0);
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t head = 0; head < num_heads; ++head) {
      const size_t first = (row * num_heads + head) * head_dim;
      errors[head] +=
          row_error(out.subspan(first, head_dim), std::span(dense_).subspan(first, head_dim));
    }
  }
  for (double& error : errors) error /= static_cast<double>(std::max<size_t>(num_rows, 1));
  return errors;
}

}  // namespace millrace::calibrate
