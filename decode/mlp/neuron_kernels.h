// SPDX-License-Identifier: Apache-2.0
// Inner loops over rows of weights in host memory, each in one thread, with vectors of the widest
// instruction set found at run time. Sums are float32, in an order that depends only on `count`.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace millrace::decode {

// A matrix whose rows are read individually.
struct WeightRows {
  const void* data = nullptr;  // float32 or bfloat16
  DType dtype = DType::kFloat32;
  int64_t row_stride = 0;  // elements

  const std::byte* row(int64_t index, int64_t column = 0) const {
    return static_cast<const std::byte*>(data) + (index * row_stride + column) * dtype_bytes(dtype);
  }
};

// Prefetches `count` elements of a row. Between rows that are not neighbours the processor's own
// prefetching stops: without this, half the rows of a matrix in memory took longer than all of
// them.
void prefetch_row(const WeightRows& rows, int64_t index, int64_t column, int64_t count);

// Dot product of row `index` and x [count].
float dot_row(const WeightRows& rows, int64_t index, const float* x, int64_t count);

// out[i] = sum over n of factors[n] * row chosen[n], for i in [begin, end) of its columns.
void sum_rows(const WeightRows& rows, const int32_t* chosen, const float* factors,
              int64_t num_chosen, int64_t begin, int64_t end, float* out);

// keys[i]: integers in the same order as scores[i], whatever the bits are.
void order_keys(const float* scores, int64_t count, int32_t* keys);
int64_t count_at_least(const int32_t* keys, int64_t count, int32_t least);

void widen(const BFloat16* from, int64_t count, float* to);

}  // namespace millrace::decode
