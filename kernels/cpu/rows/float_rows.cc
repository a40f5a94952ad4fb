// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rows/float_rows.h"

#include <cstring>

#include "common/check.h"

namespace millrace::kernels::cpu {
namespace {

void widen(const void* data, DType dtype, int64_t first, int64_t count, const RowKernels& kernels,
           float* out) {
  switch (dtype) {
    case DType::kFloat32:
      std::memcpy(out, static_cast<const float*>(data) + first,
                  static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kBFloat16:
      kernels.widen_bf16(static_cast<const BFloat16*>(data) + first, count, out);
      return;
    case DType::kFloat16:
      kernels.widen_f16(static_cast<const Float16*>(data) + first, count, out);
      return;
  }
}

}  // namespace

KeyRows::KeyRows(const KvSlab& kv, int32_t kv_head, const Context& context)
    : kv_(kv),
      first_element_(kv_head * kv.token_stride * kv.head_dim),
      kernels_(row_kernels(context.simd)) {}

const float* KeyRows::rows(int64_t first, int64_t count, float* scratch) const {
  const int64_t element = first_element_ + first * kv_.head_dim;
  if (kv_.dtype == DType::kFloat32) return static_cast<const float*>(kv_.k) + element;
  widen(kv_.k, kv_.dtype, element, count * kv_.head_dim, kernels_, scratch);
  return scratch;
}

QueryRows::QueryRows(const void* q, const KvSlab& kv, int32_t num_query_heads, int32_t head,
                     const Context& context)
    : q_(q),
      dtype_(kv.dtype),
      head_dim_(kv.head_dim),
      row_stride_(int64_t{num_query_heads} * kv.head_dim),
      first_element_(int64_t{head} * kv.head_dim),
      kernels_(row_kernels(context.simd)) {}

void QueryRows::load(int64_t first, int64_t count, float* out) const {
  for (int64_t row = 0; row < count; ++row) {
    widen(q_, dtype_, (first + row) * row_stride_ + first_element_, head_dim_, kernels_,
          out + row * head_dim_);
  }
}

int32_t kv_head_of(int32_t head, int32_t num_query_heads, const KvSlab& kv) {
  MR_CHECK(head >= 0 && head < num_query_heads && num_query_heads % kv.num_kv_heads == 0,
           "query head {} of {} over {} kv heads", head, num_query_heads, kv.num_kv_heads);
  return head / (num_query_heads / kv.num_kv_heads);
}

}  // namespace millrace::kernels::cpu
