// SPDX-License-Identifier: Apache-2.0
// Rows of Q and K of one head as contiguous float32, whatever dtype they are stored in.
#pragma once

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

// The keys of one kv head.
class KeyRows {
 public:
  KeyRows(const KvSlab& kv, int32_t kv_head, const Context& context);

  // Keys [first, first + count) as [count, head_dim]: K itself if it is float32, otherwise widened
  // into `scratch` (count * head_dim floats).
  const float* rows(int64_t first, int64_t count, float* scratch) const;

 private:
  const KvSlab& kv_;
  int64_t first_element_;
  const RowKernels& kernels_;
};

// The rows of one query head of [num_rows, num_query_heads, head_dim].
class QueryRows {
 public:
  QueryRows(const void* q, const KvSlab& kv, int32_t num_query_heads, int32_t head,
            const Context& context);

  // Writes rows [first, first + count) to `out`, [count, head_dim].
  void load(int64_t first, int64_t count, float* out) const;

 private:
  const void* q_;
  DType dtype_;
  int64_t head_dim_;
  int64_t row_stride_;
  int64_t first_element_;
  const RowKernels& kernels_;
};

// The kv head that query head `head` reads.
int32_t kv_head_of(int32_t head, int32_t num_query_heads, const KvSlab& kv);

}  // namespace millrace::kernels::cpu
