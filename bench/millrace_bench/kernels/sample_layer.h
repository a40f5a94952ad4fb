// SPDX-License-Identifier: Apache-2.0
// Q, K and V of one layer on the device, with the structure of a synthetic model's heads
// (model/synthetic/synthetic_heads.h): biases, heavy tokens and noise, rotated by RoPE.
#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/index/tiling.h"

namespace millrace::bench {

struct LayerShape {
  int64_t num_tokens = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 128;
  DType dtype = DType::kBFloat16;
};

class SampleLayer {
 public:
  // kExhausted if it does not fit on the device.
  static Result<SampleLayer> create(kernels::Device& device, const LayerShape& shape);

  const LayerShape& shape() const { return shape_; }
  float scale() const;
  kernels::KvSlab kv() const;
  const void* q() const { return q_.data(); }
  void* out() const { return out_.data(); }
  const std::vector<kernels::RowTile>& tiles() const { return tiles_; }
  // Attention of every head over all rows; everything but the index is the layer's.
  kernels::AttentionParams attention(const kernels::IndexView& index) const;
  kernels::LastRows last_rows() const;

 private:
  explicit SampleLayer(const LayerShape& shape);
  Result<void> fill(kernels::Device& device);
  int64_t row_bytes() const;  // of Q and the output

  LayerShape shape_;
  std::vector<kernels::RowTile> tiles_;
  kernels::DeviceBuffer q_, k_, v_, out_;
};

}  // namespace millrace::bench
