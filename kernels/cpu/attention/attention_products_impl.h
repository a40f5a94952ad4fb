// SPDX-License-Identifier: Apache-2.0
// The two ways to multiply, behind one shape. A product policy says what a unit is (what one lane
// multiplies at once), how K and V rows become rows of units, and how softmax weights do.
#pragma once

#include "kernels/cpu/attention/attention_tile.h"
#include "kernels/cpu/attention/attention_vector.h"

namespace millrace::kernels::cpu {
namespace {

// Keys of one step: consecutive from `first`, or `columns` if not null.
struct KeyStep {
  int64_t first = 0;
  const int32_t* columns = nullptr;
  int64_t num_keys = 0;  // 1 .. kStepKeys

  int64_t key(int64_t j) const { return columns != nullptr ? columns[j] : first + j; }
};

inline const uint16_t* bfloat16_row(const void* base, int64_t token, int64_t head_dim) {
  return static_cast<const uint16_t*>(base) + token * head_dim;
}

struct Float32Products {
  using Unit = float;
  static constexpr int64_t kUnitElements = 1;

  static VecF multiply_add(VecF sum, Unit scalar, VecF vector) { return sum + scalar * vector; }

  // Rows of a step, head_dim units apart; in place where nothing is to be gathered or widened.
  static const Unit* key_units(const AttentionTile& tile, const KeyStep& step, float* buffer) {
    return rows(tile.k, tile, step, buffer);
  }
  static const Unit* value_units(const AttentionTile& tile, const KeyStep& step, float* buffer) {
    return rows(tile.v, tile, step, buffer);
  }
  static void store_weights(float* weights, const VecF (&w)[kUnitElements]) {
    store(weights, w[0]);
  }

 private:
  static const Unit* rows(const void* base, const AttentionTile& tile, const KeyStep& step,
                          float* buffer) {
    const float* floats = static_cast<const float*>(base);
    const uint16_t* halves = static_cast<const uint16_t*>(base);
    switch (tile.kv_dtype) {
      case DType::kFloat32:
        if (step.columns == nullptr) return floats + step.first * tile.head_dim;
        widen_rows(tile, step, buffer, [=](int64_t at) { return load(floats + at); });
        break;
      case DType::kBFloat16:
        widen_rows(tile, step, buffer, [=](int64_t at) { return load_bfloat16(halves + at); });
        break;
      case DType::kFloat16:
        widen_rows(tile, step, buffer, [=](int64_t at) { return load_float16(halves + at); });
        break;
    }
    return buffer;
  }

  // load_at(element): kLanes elements from there on.
  template <typename LoadAt>
  static void widen_rows(const AttentionTile& tile, const KeyStep& step, float* buffer,
                         const LoadAt& load_at) {
    for (int64_t j = 0; j < step.num_keys; ++j) {
      const int64_t first = step.key(j) * tile.head_dim;
      float* row = buffer + j * tile.head_dim;
      for (int64_t d = 0; d < tile.head_dim; d += kLanes) store(row + d, load_at(first + d));
    }
  }
};

#if defined(__AVX512BF16__)
struct BFloat16Products {
  struct Unit {
    uint16_t first;
    uint16_t second;
  };
  static constexpr int64_t kUnitElements = 2;

  static VecF multiply_add(VecF sum, Unit scalar, VecF vector) {
    int32_t bits;
    __builtin_memcpy(&bits, &scalar, sizeof bits);
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(bits), (__m512bh)vector);
  }

  // A row of K is a row of pairs as it lies.
  static const Unit* key_units(const AttentionTile& tile, const KeyStep& step, float* buffer) {
    const void* units = bfloat16_row(tile.k, step.first, tile.head_dim);
    if (step.columns != nullptr) {
      uint16_t* gathered = reinterpret_cast<uint16_t*>(buffer);
      for (int64_t j = 0; j < step.num_keys; ++j) {
        __builtin_memcpy(gathered + j * tile.head_dim,
                         bfloat16_row(tile.k, step.columns[j], tile.head_dim),
                         static_cast<size_t>(tile.head_dim) * sizeof(uint16_t));
      }
      units = gathered;
    }
    return static_cast<const Unit*>(units);
  }

  // Sums run over keys, so two rows of V are interleaved into one of pairs; an odd last row with
  // zeros.
  static const Unit* value_units(const AttentionTile& tile, const KeyStep& step, float* buffer) {
    for (int64_t j = 0; j < step.num_keys; j += 2) {
      const uint16_t* even = bfloat16_row(tile.v, step.key(j), tile.head_dim);
      const bool paired = j + 1 < step.num_keys;
      const uint16_t* odd = paired ? bfloat16_row(tile.v, step.key(j + 1), tile.head_dim) : even;
      const VecI keep = VecI{} - (paired ? 1 : 0);
      float* pairs = buffer + j / 2 * tile.head_dim;
      for (int64_t d = 0; d < tile.head_dim; d += kLanes) {
        const VecI bits = load_halves(even + d) | ((load_halves(odd + d) & keep) << 16);
        store(pairs + d, reinterpret_cast<VecF>(bits));
      }
    }
    return reinterpret_cast<const Unit*>(buffer);
  }

  static void store_weights(float* weights, const VecF (&w)[kUnitElements]) {
    const VecHalves rounded = (VecHalves)_mm512_cvtne2ps_pbh(w[1], w[0]);
    const VecHalves pairs = __builtin_shufflevector(rounded, rounded, 0, 16, 1, 17, 2, 18, 3, 19, 4,
                                                    20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26,
                                                    11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    store(weights, reinterpret_cast<VecF>(pairs));
  }

 private:
  typedef uint16_t VecHalves __attribute__((vector_size(MR_VECTOR_BYTES)));
};
#endif

}  // namespace
}  // namespace millrace::kernels::cpu
