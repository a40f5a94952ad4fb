// SPDX-License-Identifier: Apache-2.0
// The inner loops of the row-wise operations, compiled once per instruction set from
// row_kernels_impl.h. Each works on one row (or one page) by one thread.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/float8.h"
#include "kernels/cpu/runtime/simd_level.h"

namespace millrace::kernels::cpu {

// One table per instruction set. For each element type there is a pointer of its own: a template
// parameter cannot cross the boundary to a file that is compiled with other flags.
struct RowKernels {
  void (*widen_bf16)(const BFloat16* x, int64_t count, float* out);
  void (*widen_f16)(const Float16* x, int64_t count, float* out);
  void (*narrow_bf16)(const float* x, int64_t count, BFloat16* out);

  // As in common/float8_array.h, for float32.
  void (*encode_float8)(const float* x, int64_t count, float scale, Float8* codes);
  void (*decode_float8)(const Float8* codes, int64_t count, float scale, float* out);

  // x[i] += y[i]
  void (*add)(const float* y, int64_t count, float* x);
  // x[i] += factor * y[i]
  void (*add_scaled)(const float* y, float factor, int64_t count, float* x);
  float (*dot)(const float* x, const float* y, int64_t count);

  // out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]
  void (*rms_norm_f32)(const float* x, const float* weight, float eps, int64_t count, float* out);
  void (*rms_norm_bf16)(const float* x, const float* weight, float eps, int64_t count,
                        BFloat16* out);

  // out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
  void (*silu_mul_f32)(const float* gate, const float* up, int64_t count, float* out);
  void (*silu_mul_bf16)(const float* gate, const float* up, int64_t count, BFloat16* out);

  // out[i] = gelu(gate[i]) * up[i], in the tanh approximation
  void (*gelu_mul_f32)(const float* gate, const float* up, int64_t count, float* out);
  void (*gelu_mul_bf16)(const float* gate, const float* up, int64_t count, BFloat16* out);

  // h = min(gate[i], limit); out[i] = h / (1 + exp(-alpha h)) * (up[i] clamped to +-limit, plus 1)
  void (*clamped_mul_f32)(const float* gate, const float* up, float alpha, float limit,
                          int64_t count, float* out);
  void (*clamped_mul_bf16)(const float* gate, const float* up, float alpha, float limit,
                           int64_t count, BFloat16* out);

  // cos and sin of the float32 product position * inv_freq[i], |product| < 2^24.
  void (*cos_sin)(float position, const float* inv_freq, int64_t count, float* cosines,
                  float* sines);
  // Rotates x[i] and x[i + half] by angle i.
  void (*rotate_f32)(const float* x, const float* cosines, const float* sines, int64_t half,
                     float* out);
  void (*rotate_bf16)(const float* x, const float* cosines, const float* sines, int64_t half,
                      BFloat16* out);

  // Column-wise over `num_rows` >= 1 rows of `dim` elements: PageDigestParams of one page.
  void (*digest_f32)(const float* k, int64_t num_rows, int64_t dim, float* min, float* max,
                     float* radius);
  void (*digest_bf16)(const BFloat16* k, int64_t num_rows, int64_t dim, float* min, float* max,
                      float* radius);
  void (*digest_f16)(const Float16* k, int64_t num_rows, int64_t dim, float* min, float* max,
                     float* radius);
};

const RowKernels& row_kernels(SimdLevel level);

extern const RowKernels kRowKernelsBaseline;
extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;

}  // namespace millrace::kernels::cpu
