// SPDX-License-Identifier: Apache-2.0
// One attention problem with its data, computed by the CPU kernels, by the reference in double, and
// by the naive loop that sets the tolerance.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/cpu/runtime/simd_level.h"
#include "tests/unit/kernels/index/random_index.h"

namespace millrace::kernels {

struct AttentionShape {
  int64_t num_tokens = 0;
  int32_t num_query_heads = 1;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 64;
  DType dtype = DType::kFloat32;
  int64_t window = 0;   // AttentionParams::window
  float key_scale = 1;  // above 1, attention is sharper: few keys have most of a row's mass
};

// Lists of every query head of a shape. dense_heads(): everything. random_heads(): random, with a
// different seed for each head.
std::vector<HeadLists> dense_heads(const AttentionShape& shape);
std::vector<HeadLists> random_heads(const AttentionShape& shape, std::span<const RowTile> tiles,
                                    uint64_t seed);

// The rows of the first of two ranks: 613 tokens in stripes of 128, dealt in snake order.
std::vector<RowTile> tiles_of_two_stripes();

struct AttentionResult {
  std::vector<float> out;              // [num_rows, num_query_heads, head_dim]
  std::vector<float> lse;              // [num_query_heads, num_rows]
  std::vector<int64_t> covered_pairs;  // [num_query_heads]
};

class AttentionCase {
 public:
  // All rows of the prompt, in order.
  AttentionCase(const AttentionShape& shape, const std::vector<HeadLists>& heads, uint64_t seed);
  AttentionCase(const AttentionShape& shape, const std::vector<HeadLists>& heads,
                std::vector<RowTile> tiles, uint64_t seed);

  // Checks that nothing outside the outputs was written.
  AttentionResult run_cpu(cpu::SimdLevel simd, int num_threads = 1);
  // On the same rounded inputs. Results are float32 for every dtype.
  AttentionResult run_ref();
  // Loops in float32. With a 16-bit dtype, weights and results are rounded to it.
  AttentionResult run_naive();

  void set_sinks(std::vector<float> sinks) { sinks_ = std::move(sinks); }  // of the query heads
  // Makes K and V of these tokens NaN.
  void poison_keys(int64_t begin, int64_t end);
  // The problem in host memory without its outputs: in the shape's dtype, or the same values as
  // float32.
  AttentionParams params(bool as_float = false);
  int64_t num_rows() const { return num_rows_; }
  const AttentionShape& shape() const { return shape_; }

 private:
  std::vector<int64_t> keys_of(int32_t head, size_t tile_number, int64_t row);
  void naive_row(int32_t head, const std::vector<int64_t>& keys, int64_t row,
                 AttentionResult& result);

  AttentionShape shape_;
  std::vector<RowTile> tiles_;
  int64_t num_rows_ = 0;
  OwnedIndex index_;
  std::vector<float> sinks_;
  std::vector<float> q_, k_, v_;  // rounded to the dtype
  std::vector<uint16_t> q16_, k16_, v16_;
};

}  // namespace millrace::kernels
