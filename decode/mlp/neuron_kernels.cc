// SPDX-License-Identifier: Apache-2.0
#include "decode/mlp/neuron_kernels.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "kernels/cpu/runtime/vectorised.h"

namespace millrace::decode {

namespace {

constexpr int64_t kLanes = 16;
// Parallel sums in dot_row, because additions to one sum wait for each other.
constexpr int64_t kSums = 4;
// Rows that sum_rows adds up before it writes.
constexpr int64_t kRows = 4;
constexpr int64_t kLineBytes = 64;
// How far sum_rows prefetches.
constexpr int64_t kRowsAhead = 16;

// Aligned like the elements.
typedef float Lanes __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2), aligned(2)));

MR_INLINE Lanes load(const float* at) {
  return *reinterpret_cast<const Lanes*>(at);
}
MR_INLINE Lanes load(const BFloat16* at) {
  const Halves halves = *reinterpret_cast<const Halves*>(at);
  return reinterpret_cast<Lanes>(__builtin_convertvector(halves, Words) << 16);
}
MR_INLINE void store(Lanes x, float* at) {
  *reinterpret_cast<Lanes*>(at) = x;
}
MR_INLINE float sum_of(Lanes a) {
  float sum = 0;
  for (int64_t i = 0; i < kLanes; ++i) sum += a[i];
  return sum;
}

template <typename T>
MR_INLINE float dot(const T* row, const float* x, int64_t count) {
  Lanes sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kLanes <= count; i += kSums * kLanes) {
    for (int64_t s = 0; s < kSums; ++s) {
      sums[s] += load(row + i + s * kLanes) * load(x + i + s * kLanes);
    }
  }
  for (; i + kLanes <= count; i += kLanes) sums[0] += load(row + i) * load(x + i);
  float sum = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < count; ++i) sum += to_float(row[i]) * x[i];
  return sum;
}

MR_VECTORISED float dot_float32(const float* row, const float* x, int64_t count) {
  return dot(row, x, count);
}
MR_VECTORISED float dot_bfloat16(const BFloat16* row, const float* x, int64_t count) {
  return dot(row, x, count);
}

// out += factors[0] rows[0] + ... + factors[kRows - 1] rows[kRows - 1]
template <typename T>
MR_INLINE void add_four(const T* const* rows, const float* factors, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes sum = load(out + i);
    for (int64_t r = 0; r < kRows; ++r) sum += factors[r] * load(rows[r] + i);
    store(sum, out + i);
  }
  for (; i < count; ++i) {
    for (int64_t r = 0; r < kRows; ++r) out[i] += factors[r] * to_float(rows[r][i]);
  }
}

MR_VECTORISED void add_four_float32(const float* const* rows, const float* factors, int64_t count,
                                    float* out) {
  add_four(rows, factors, count, out);
}
MR_VECTORISED void add_four_bfloat16(const BFloat16* const* rows, const float* factors,
                                     int64_t count, float* out) {
  add_four(rows, factors, count, out);
}

MR_VECTORISED void widen_row(const BFloat16* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(from + i), to + i);
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

// Flips the other bits of a negative float.
MR_VECTORISED void key_of_each(const float* scores, int64_t count, int32_t* keys) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<int32_t>(scores[i]);
    keys[i] = bits ^ ((bits >> 31) & 0x7fffffff);
  }
}

MR_VECTORISED int32_t count_keys(const int32_t* keys, int32_t count, int32_t least) {
  int32_t sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += keys[i] >= least ? 1 : 0;
  return sum;
}

template <typename T>
const T* as(const std::byte* bytes) {
  return reinterpret_cast<const T*>(bytes);
}

}  // namespace

void prefetch_row(const WeightRows& rows, int64_t index, int64_t column, int64_t count) {
  const std::byte* const begin = rows.row(index, column);
  for (int64_t byte = 0; byte < count * dtype_bytes(rows.dtype); byte += kLineBytes) {
    __builtin_prefetch(begin + byte);
  }
}

float dot_row(const WeightRows& rows, int64_t index, const float* x, int64_t count) {
  return rows.dtype == DType::kBFloat16 ? dot_bfloat16(as<BFloat16>(rows.row(index)), x, count)
                                        : dot_float32(as<float>(rows.row(index)), x, count);
}

void sum_rows(const WeightRows& rows, const int32_t* chosen, const float* factors,
              int64_t num_chosen, int64_t begin, int64_t end, float* out) {
  std::fill(out + begin, out + end, 0.0f);
  for (int64_t first = 0; first < num_chosen; first += kRows) {
    const std::byte* addresses[kRows];
    float weights[kRows];
    for (int64_t r = 0; r < kRows; ++r) {
      // Beyond the last row, takes that row again, times 0.
      const int64_t n = std::min(first + r, num_chosen - 1);
      addresses[r] = rows.row(chosen[n], begin);
      if (n + kRowsAhead < num_chosen) {
        prefetch_row(rows, chosen[n + kRowsAhead], begin, end - begin);
      }
      weights[r] = first + r < num_chosen ? factors[n] : 0.0f;
    }
    if (rows.dtype == DType::kBFloat16) {
      const BFloat16* of[kRows];
      for (int64_t r = 0; r < kRows; ++r) of[r] = as<BFloat16>(addresses[r]);
      add_four_bfloat16(of, weights, end - begin, out + begin);
    } else {
      const float* of[kRows];
      for (int64_t r = 0; r < kRows; ++r) of[r] = as<float>(addresses[r]);
      add_four_float32(of, weights, end - begin, out + begin);
    }
  }
}

void order_keys(const float* scores, int64_t count, int32_t* keys) {
  key_of_each(scores, count, keys);
}

int64_t count_at_least(const int32_t* keys, int64_t count, int32_t least) {
  return count_keys(keys, static_cast<int32_t>(count), least);
}

void widen(const BFloat16* from, int64_t count, float* to) {
  widen_row(from, count, to);
}

}  // namespace millrace::decode
