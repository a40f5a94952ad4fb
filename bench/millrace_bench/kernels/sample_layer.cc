// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/sample_layer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "bench/millrace_bench/kernels/random_fill.h"
#include "model/config/rope.h"
#include "model/synthetic/synthetic_heads.h"
#include "model/synthetic/synthetic_model.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::bench {

namespace {

constexpr uint64_t kSeed = 1;
constexpr int64_t kFillRows = 4096;
constexpr auto kFillTimeout = std::chrono::minutes(1);
// As in the weights of a synthetic model.
constexpr float kContentScale = 0.5F;
constexpr int64_t kNormals = 1 << 20;

model::ModelConfig config_of(const LayerShape& shape) {
  auto config = *model::synthetic_config("synthetic:llama-3-8b");
  config.num_query_heads = shape.num_query_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  return config;
}

// Makes the projections of successive tokens, before RoPE.
class RowMaker {
 public:
  explicit RowMaker(const model::ModelConfig& config)
      : heads_(model::synthetic_heads(config, kSeed, /*layer=*/0)),
        width_(std::ssize(heads_.q_bias) + 2 * std::ssize(heads_.k_bias)),
        normals_(make_normals(kNormals + width_, kSeed)) {}

  int64_t width() const { return width_; }

  void make(int64_t token, float* row) const {
    const auto place = model::mixed_bits(kSeed, static_cast<uint64_t>(token)) % kNormals;
    const float* noise = normals_.data() + place;
    const float heaviness = model::token_heaviness(kSeed, static_cast<int32_t>(token));
    const auto q = std::ssize(heads_.q_bias), k = std::ssize(heads_.k_bias);
    for (int64_t i = 0; i < q; ++i) row[i] = kContentScale * noise[i] + heads_.q_bias[i];
    row += q;
    noise += q;
    for (int64_t i = 0; i < k; ++i) {
      row[i] = kContentScale * noise[i] + heads_.k_bias[i] + heaviness * heads_.heavy_key[i];
    }
    std::copy_n(noise + k, k, row + k);
  }

 private:
  model::SyntheticHeads heads_;
  int64_t width_;
  std::vector<float> normals_;
};

Result<kernels::DeviceBuffer> to_device(kernels::Device& device, const void* data, int64_t bytes) {
  MR_ASSIGN_OR_RETURN(auto buffer, device.allocate(bytes));
  device.copy(buffer.data(), data, bytes);
  MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kFillTimeout)));
  return buffer;
}

}  // namespace

SampleLayer::SampleLayer(const LayerShape& shape)
    : shape_(shape), tiles_(kernels::tile_rows(shape.num_tokens)) {}

int64_t SampleLayer::row_bytes() const {
  return int64_t{shape_.num_query_heads} * shape_.head_dim * dtype_bytes(shape_.dtype);
}

Result<SampleLayer> SampleLayer::create(kernels::Device& device, const LayerShape& shape) {
  SampleLayer layer(shape);
  const int64_t q_bytes = shape.num_tokens * layer.row_bytes();
  const int64_t kv_bytes = q_bytes / shape.num_query_heads * shape.num_kv_heads;
  MR_ASSIGN_OR_RETURN(layer.q_, device.allocate(q_bytes));
  MR_ASSIGN_OR_RETURN(layer.k_, device.allocate(kv_bytes));
  MR_ASSIGN_OR_RETURN(layer.v_, device.allocate(kv_bytes));
  MR_ASSIGN_OR_RETURN(layer.out_, device.allocate(q_bytes));
  MR_RETURN_IF_ERROR(layer.fill(device));
  return layer;
}

Result<void> SampleLayer::fill(kernels::Device& device) {
  const auto config = config_of(shape_);
  const RowMaker maker(config);
  const auto inv_freq = model::rope_inv_freq(config);
  std::vector<int32_t> positions(static_cast<size_t>(shape_.num_tokens));
  std::iota(positions.begin(), positions.end(), 0);
  MR_ASSIGN_OR_RETURN(const auto device_positions,
                      to_device(device, positions.data(), std::ssize(positions) * 4));
  MR_ASSIGN_OR_RETURN(const auto device_inv_freq,
                      to_device(device, inv_freq.data(), std::ssize(inv_freq) * 4));
  std::vector<float> rows(static_cast<size_t>(kFillRows * maker.width()));
  MR_ASSIGN_OR_RETURN(const auto device_rows, device.allocate(std::ssize(rows) * 4));

  const int64_t kv_row = shape_.head_dim * dtype_bytes(shape_.dtype);
  for (int64_t first = 0; first < shape_.num_tokens; first += kFillRows) {
    const int64_t count = std::min(kFillRows, shape_.num_tokens - first);
    for (int64_t r = 0; r < count; ++r) maker.make(first + r, rows.data() + r * maker.width());
    device.copy(device_rows.data(), rows.data(), count * maker.width() * 4);
    device.rope_qkv({.qkv = device_rows.data(),
                     .num_rows = count,
                     .num_query_heads = shape_.num_query_heads,
                     .num_kv_heads = shape_.num_kv_heads,
                     .head_dim = shape_.head_dim,
                     .positions = device_positions.as<int32_t>() + first,
                     .inv_freq = device_inv_freq.as<float>(),
                     .dtype = shape_.dtype,
                     .q = q_.as<std::byte>() + first * row_bytes(),
                     .k = k_.as<std::byte>() + first * kv_row,
                     .v = v_.as<std::byte>() + first * kv_row,
                     .kv_stride = shape_.num_tokens});
    MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kFillTimeout)));
  }
  return {};
}

float SampleLayer::scale() const {
  return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
}

kernels::KvSlab SampleLayer::kv() const {
  return {.k = k_.data(),
          .v = v_.data(),
          .dtype = shape_.dtype,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .num_tokens = shape_.num_tokens,
          .token_stride = shape_.num_tokens};
}

kernels::AttentionParams SampleLayer::attention(const kernels::IndexView& index) const {
  return {.q = q_.data(),
          .num_rows = shape_.num_tokens,
          .num_query_heads = shape_.num_query_heads,
          .scale = scale(),
          .kv = kv(),
          .tiles = tiles_,
          .index = index,
          .out = out_.data()};
}

kernels::LastRows SampleLayer::last_rows() const {
  const int64_t num_rows = std::min(kernels::kLastRows, shape_.num_tokens);
  return {.q = q_.as<std::byte>() + (shape_.num_tokens - num_rows) * row_bytes(),
          .num_rows = num_rows,
          .first_position = shape_.num_tokens - num_rows,
          .num_query_heads = shape_.num_query_heads,
          .scale = scale()};
}

}  // namespace millrace::bench
