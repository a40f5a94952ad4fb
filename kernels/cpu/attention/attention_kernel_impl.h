// SPDX-License-Identifier: Apache-2.0
// Flash attention of one tile (Dao et al. 2022), written once for every vector width. Included by
// the attention_<level>.cc, which define MR_VECTOR_BYTES and the shape of the micro-kernels:
//   MR_KEY_GROUP  keys of the score micro-kernel, which holds MR_KEY_GROUP x kRowVectors sums
//   MR_ROW_GROUP  rows of the output micro-kernel, which holds MR_ROW_GROUP x kOutVectors sums
//
// Lanes are query rows in the scores and head dimensions in the output, so that neither K nor V
// needs to be transposed, and the softmax has no horizontal step:
//   1. Q is packed once per tile into blocks of kBlockRows rows, row innermost.
//   2. Per step of at most kStepKeys keys and per row block:
//      S^T[key][row] = sum over d of K[key][d] (a broadcast) * Q^T[d][row] (a vector);
//   3. the running maximum rises, S^T becomes weights exp2(S - max) in place, sums grow;
//   4. out[row][d] = out * exp2(old max - new max)
//                    + sum over keys of weight (a broadcast) * V[key][d] (a vector);
//   5. Last, out is divided by the sum and written in the caller's dtype.
#pragma once

#include "kernels/cpu/attention/attention_products_impl.h"
#include "kernels/cpu/attention/attention_tile.h"
#include "kernels/cpu/attention/attention_vector.h"

namespace millrace::kernels::cpu {
namespace {

constexpr int64_t kRowVectors = 2;
constexpr int64_t kBlockRows = kRowVectors * kLanes;
constexpr int64_t kOutVectors = 2;
constexpr int64_t kKeyGroup = MR_KEY_GROUP;
constexpr int64_t kRowGroup = MR_ROW_GROUP;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kNothing = -__builtin_inff();

static_assert(kBlockRows <= kMaxBlockRows && kKeyGroup <= kMaxKeyGroup);
static_assert(kBlockRows % kRowGroup == 0 && kTileRows % kBlockRows == 0);

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

inline float widen(uint16_t bfloat16) {
  const uint32_t bits = uint32_t{bfloat16} << 16;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// To bfloat16, nearest even; NaN stays NaN.
inline uint16_t narrow(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename Products>
class TileKernel {
 public:
  TileKernel(const AttentionTile& tile, AttentionScratch& scratch)
      : tile_(tile), scratch_(scratch), log2_scale_(tile.scale * kLog2E) {}

  void run() {
    pack_queries();
    clear();
    for (int64_t i = 0; i < tile_.num_ranges; ++i) {
      const KeyRange& range = tile_.ranges[i];
      for (int64_t key = range.begin; key < range.end; key += kStepKeys) {
        attend({.first = key, .num_keys = smaller(kStepKeys, range.end - key)});
      }
    }
    for (int64_t i = 0; i < tile_.num_columns; i += kStepKeys) {
      attend({.columns = tile_.columns + i, .num_keys = smaller(kStepKeys, tile_.num_columns - i)});
    }
    finish();
  }

 private:
  using Unit = typename Products::Unit;
  static_assert(sizeof(Unit) == sizeof(float));
  static constexpr int64_t kUnitElements = Products::kUnitElements;

  // Rows past the end are zeros: they compute along and are dropped.
  void pack_queries() {
    for (int64_t row = 0; row < kTileRows; ++row) {
      float* packed = block_queries(row / kBlockRows) + row % kBlockRows;
      const int64_t first = row * tile_.row_stride;
      const bool live = row < tile_.num_rows;
      for (int64_t i = 0; i < depth(); ++i, packed += kBlockRows) {
        *packed = live ? query_unit(first + i * kUnitElements) : 0.0f;
      }
    }
  }

  // The bits of one unit of Q.
  float query_unit(int64_t element) const {
    float unit;
    if (kUnitElements == 2) {
      __builtin_memcpy(&unit, static_cast<const uint16_t*>(tile_.q) + element, sizeof unit);
    } else if (tile_.q_dtype == DType::kFloat32) {
      unit = static_cast<const float*>(tile_.q)[element];
    } else {
      unit = widen(static_cast<const uint16_t*>(tile_.q)[element]);
    }
    return unit;
  }

  void clear() {
    __builtin_memset(scratch_.out, 0,
                     static_cast<size_t>(kTileRows * tile_.head_dim) * sizeof(float));
    for (int64_t row = 0; row < kTileRows; ++row) {
      scratch_.scaled_max[row] = kNothing;
      scratch_.sum[row] = 0;
    }
  }

  void attend(const KeyStep& step) {
    const Unit* keys = Products::key_units(tile_, step, scratch_.keys);
    const Unit* values = Products::value_units(tile_, step, scratch_.values);
    for (int64_t row = 0; row < tile_.num_rows; row += kBlockRows) {
      const int64_t end_row = smaller(row + kBlockRows, tile_.num_rows);
      const int64_t num_keys = visible_keys(step, end_row - 1);
      if (num_keys == 0 || before_window(step.key(num_keys - 1), row)) continue;
      score(keys, num_keys, row);
      mask(step, num_keys, row);
      softmax(num_keys, row);
      accumulate(values, num_keys, row, end_row);
    }
  }

  // Keys ascend: those hidden from the block's last row are at the end.
  int64_t visible_keys(const KeyStep& step, int64_t last_row) const {
    int64_t num_keys = step.num_keys;
    while (num_keys > 0 && step.key(num_keys - 1) > tile_.position + last_row) --num_keys;
    return num_keys;
  }

  // Whether no row from `row` on sees the key.
  bool before_window(int64_t key, int64_t row) const {
    return tile_.window > 0 && key <= tile_.position + row - tile_.window;
  }

  // Phase 2. The last group repeats the last key; its surplus scores are not read.
  void score(const Unit* keys, int64_t num_keys, int64_t row) {
    const float* queries = block_queries(row / kBlockRows);
    for (int64_t j = 0; j < num_keys; j += kKeyGroup) {
      const Unit* group[kKeyGroup];
      for (int64_t g = 0; g < kKeyGroup; ++g) {
        group[g] = keys + smaller(j + g, num_keys - 1) * depth();
      }
      score_group(queries, group, scratch_.scores + j * kBlockRows);
    }
  }

  void score_group(const float* queries, const Unit* const (&keys)[kKeyGroup],
                   float* scores) const {
    VecF sums[kKeyGroup][kRowVectors] = {};
    const int64_t end = depth();
    for (int64_t i = 0; i < end; ++i) {
      const VecF q0 = load(queries + i * kBlockRows);
      const VecF q1 = load(queries + i * kBlockRows + kLanes);
#pragma GCC unroll 16
      for (int64_t g = 0; g < kKeyGroup; ++g) {
        sums[g][0] = Products::multiply_add(sums[g][0], keys[g][i], q0);
        sums[g][1] = Products::multiply_add(sums[g][1], keys[g][i], q1);
      }
    }
#pragma GCC unroll 16
    for (int64_t g = 0; g < kKeyGroup; ++g) {
      store(scores + g * kBlockRows, sums[g][0]);
      store(scores + g * kBlockRows + kLanes, sums[g][1]);
    }
  }

  void mask(const KeyStep& step, int64_t num_keys, int64_t row) {
    if (before_window(step.key(0), row + kBlockRows - 1)) mask_before_window(step, num_keys, row);
    if (step.key(num_keys - 1) <= tile_.position + row) return;
    const VecI lanes = lane_numbers();
    for (int64_t j = 0; j < num_keys; ++j) {
      const int64_t first_row = step.key(j) - tile_.position - row;  // that sees the key
      if (first_row <= 0) continue;
      for (int64_t v = 0; v < kRowVectors; ++v) {
        float* scores = scratch_.scores + j * kBlockRows + v * kLanes;
        const VecI rows = lanes + static_cast<int32_t>(v * kLanes);
        store(scores, rows < static_cast<int32_t>(first_row) ? broadcast(kNothing) : load(scores));
      }
    }
  }

  void mask_before_window(const KeyStep& step, int64_t num_keys, int64_t row) {
    const VecI lanes = lane_numbers();
    for (int64_t j = 0; j < num_keys; ++j) {
      // The first row that the key is too old for.
      const int64_t end_row = step.key(j) + tile_.window - tile_.position - row;
      if (end_row >= kBlockRows) continue;
      for (int64_t v = 0; v < kRowVectors; ++v) {
        float* scores = scratch_.scores + j * kBlockRows + v * kLanes;
        const VecI rows = lanes + static_cast<int32_t>(v * kLanes);
        store(scores, rows >= static_cast<int32_t>(end_row) ? broadcast(kNothing) : load(scores));
      }
    }
  }

  // Phase 3, a vector of rows at a time. Rows that see nothing yet have -inf as their maximum; 0
  // stands in for it in the exponent, which makes their weights 0.
  void softmax(int64_t num_keys, int64_t row) {
    float* scores = scratch_.scores;
    for (int64_t j = num_keys; j % kUnitElements != 0; ++j) {
      for (int64_t r = 0; r < kBlockRows; ++r) scores[j * kBlockRows + r] = kNothing;
    }
    VecF shift[kRowVectors];
    for (int64_t v = 0; v < kRowVectors; ++v) {
      const int64_t first = row + v * kLanes;
      const VecF old_max = load(scratch_.scaled_max + first);
      const VecF new_max = max(old_max, column_max(scores + v * kLanes, num_keys) * log2_scale_);
      shift[v] = new_max == broadcast(kNothing) ? VecF{} : new_max;
      const VecF rescale = exp2(old_max - shift[v]);
      store(scratch_.scaled_max + first, new_max);
      store(scratch_.rescale + v * kLanes, rescale);
      store(scratch_.sum + first, load(scratch_.sum + first) * rescale);
    }
    exponentiate(shift, num_keys, row);
  }

  static VecF column_max(const float* scores, int64_t num_keys) {
    VecF even = broadcast(kNothing);
    VecF odd = even;
    int64_t j = 0;
    for (; j + 1 < num_keys; j += 2) {
      even = max(load(scores + j * kBlockRows), even);
      odd = max(load(scores + (j + 1) * kBlockRows), odd);
    }
    if (j < num_keys) even = max(load(scores + j * kBlockRows), even);
    return max(even, odd);
  }

  // Weights replace the scores, a unit in place of the first of its keys' scores; packed, so that
  // unit u of row r is at [u][r].
  void exponentiate(const VecF (&shift)[kRowVectors], int64_t num_keys, int64_t row) {
    VecF sums[kRowVectors] = {};
    for (int64_t j = 0; j < num_keys; j += kUnitElements) {
      for (int64_t v = 0; v < kRowVectors; ++v) {
        VecF weights[kUnitElements];
        for (int64_t u = 0; u < kUnitElements; ++u) {
          const VecF scores = load(scratch_.scores + (j + u) * kBlockRows + v * kLanes);
          weights[u] = exp2(scores * log2_scale_ - shift[v]);
          sums[v] += weights[u];
        }
        Products::store_weights(scratch_.scores + j / kUnitElements * kBlockRows + v * kLanes,
                                weights);
      }
    }
    for (int64_t v = 0; v < kRowVectors; ++v) {
      float* sum = scratch_.sum + row + v * kLanes;
      store(sum, load(sum) + sums[v]);
    }
  }

  // Phase 4.
  void accumulate(const Unit* values, int64_t num_keys, int64_t row, int64_t end_row) {
    const int64_t num_units = (num_keys + kUnitElements - 1) / kUnitElements;
    for (int64_t r = row; r < end_row; r += kRowGroup) {
      int64_t d = 0;
      for (; d + kOutVectors * kLanes <= tile_.head_dim; d += kOutVectors * kLanes) {
        accumulate_group<kOutVectors>(values + d, num_units, r, row, d);
      }
      if (d < tile_.head_dim) accumulate_group<1>(values + d, num_units, r, row, d);
    }
  }

  template <int64_t kVectors>
  void accumulate_group(const Unit* values, int64_t num_units, int64_t row, int64_t block_row,
                        int64_t d) {
    const int64_t head_dim = tile_.head_dim;
    const float* weights = scratch_.scores + (row - block_row);
    const float* rescale = scratch_.rescale + (row - block_row);
    float* out = scratch_.out + row * head_dim + d;
    VecF sums[kRowGroup][kVectors];
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRowGroup; ++r) {
      for (int64_t v = 0; v < kVectors; ++v) {
        sums[r][v] = load(out + r * head_dim + v * kLanes) * rescale[r];
      }
    }
    for (int64_t u = 0; u < num_units; ++u) {
      VecF row_values[kVectors];
      for (int64_t v = 0; v < kVectors; ++v) {
        row_values[v] = load(values + u * head_dim + v * kLanes);
      }
#pragma GCC unroll 16
      for (int64_t r = 0; r < kRowGroup; ++r) {
        Unit weight;
        __builtin_memcpy(&weight, weights + u * kBlockRows + r, sizeof weight);
        for (int64_t v = 0; v < kVectors; ++v) {
          sums[r][v] = Products::multiply_add(sums[r][v], weight, row_values[v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRowGroup; ++r) {
      for (int64_t v = 0; v < kVectors; ++v) store(out + r * head_dim + v * kLanes, sums[r][v]);
    }
  }

  // Phase 5.
  void finish() {
    for (int64_t row = 0; row < tile_.num_rows; ++row) {
      const float sum = scratch_.sum[row];
      const float sink = __builtin_exp2f(tile_.sink * kLog2E - scratch_.scaled_max[row]);
      const float inverse = sum == 0 ? 0.0f : 1.0f / (sum + sink);
      const float* values = scratch_.out + row * tile_.head_dim;
      for (int64_t d = 0; d < tile_.head_dim; ++d) {
        write_out(row * tile_.row_stride + d, values[d] * inverse);
      }
      if (tile_.lse != nullptr) {
        tile_.lse[row] = scratch_.scaled_max[row] * kLn2 + __builtin_logf(sum);
      }
    }
  }

  void write_out(int64_t element, float value) {
    if (tile_.q_dtype == DType::kFloat32) {
      static_cast<float*>(tile_.out)[element] = value;
    } else {
      static_cast<uint16_t*>(tile_.out)[element] = narrow(value);
    }
  }

  // Units of a row of Q or K.
  int64_t depth() const {
    return tile_.head_dim / kUnitElements;
  }
  float* block_queries(int64_t block) {
    return scratch_.queries + block * kBlockRows * depth();
  }

  const AttentionTile& tile_;
  AttentionScratch& scratch_;
  const float log2_scale_;
};

}  // namespace
}  // namespace millrace::kernels::cpu
