// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {
namespace {

// The two element types of q, k and v behind the same three names.
struct Float32Output {
  using Element = float;
  static void rotate(const RowKernels& kernels, const float* x, const float* cosines,
                     const float* sines, int64_t half, float* out) {
    kernels.rotate_f32(x, cosines, sines, half, out);
  }
  static void copy(const RowKernels&, const float* x, int64_t count, float* out) {
    std::copy_n(x, count, out);
  }
};

struct BFloat16Output {
  using Element = BFloat16;
  static void rotate(const RowKernels& kernels, const float* x, const float* cosines,
                     const float* sines, int64_t half, BFloat16* out) {
    kernels.rotate_bf16(x, cosines, sines, half, out);
  }
  static void copy(const RowKernels& kernels, const float* x, int64_t count, BFloat16* out) {
    kernels.narrow_bf16(x, count, out);
  }
};

// Working memory of a thread for one row: cosines and sines, a normalised head, and, for pairs of
// neighbours, a head whose pairs were moved to elements i and i + half, before and after rotation.
struct RowScratch {
  explicit RowScratch(const RopeQkvParams& p)
      : cosines(static_cast<size_t>(p.num_turned() / 2)),
        sines(cosines.size()),
        normed(static_cast<size_t>(p.head_dim)),
        apart(p.interleaved ? normed.size() : 0),
        turned(apart.size()) {}
  std::vector<float> cosines, sines, normed, apart, turned;
};

// Rotates the first `count` elements of a head whose pairs are neighbours.
template <typename Output>
void turn_neighbours(const float* x, size_t count, const RowKernels& kernels, RowScratch& scratch,
                     typename Output::Element* out) {
  const size_t half = count / 2;
  for (size_t i = 0; i < half; ++i) {
    scratch.apart[i] = x[2 * i];
    scratch.apart[half + i] = x[2 * i + 1];
  }
  kernels.rotate_f32(scratch.apart.data(), scratch.cosines.data(), scratch.sines.data(),
                     static_cast<int64_t>(half), scratch.turned.data());
  for (size_t i = 0; i < half; ++i) {
    scratch.apart[2 * i] = scratch.turned[i];
    scratch.apart[2 * i + 1] = scratch.turned[half + i];
  }
  Output::copy(kernels, scratch.apart.data(), static_cast<int64_t>(count), out);
}

// The norm of a head: its own, or its part of a norm over all heads, whose scale is known.
struct HeadNorm {
  const float* weights = nullptr;  // null: none
  bool is_part = false;
  float scale = 1;

  // The norm of head `number` of Q or of K.
  static HeadNorm of(const RopeQkvParams& p, int64_t row, int64_t number, bool of_q) {
    const float* weights = of_q ? p.q_norm : p.k_norm;
    if (p.squares == nullptr) return {.weights = weights};
    const auto count = static_cast<float>(of_q ? p.num_q_squares : p.num_k_squares);
    const float mean = p.squares[2 * row + (of_q ? 0 : 1)] / count;
    return {.weights = weights + number * p.head_dim,
            .is_part = true,
            .scale = 1.0F / std::sqrt(mean + p.norm_eps)};
  }

  void apply(const float* x, float eps, int64_t count, const RowKernels& kernels,
             float* out) const {
    if (!is_part) return kernels.rms_norm_f32(x, weights, eps, count, out);
    for (int64_t i = 0; i < count; ++i) out[i] = x[i] * scale * weights[i];
  }
};

template <typename Output>
void turn_head(const RopeQkvParams& p, const float* x, const HeadNorm& norm,
               const RowKernels& kernels, RowScratch& scratch, typename Output::Element* out) {
  if (norm.weights != nullptr) {
    norm.apply(x, p.norm_eps, p.head_dim, kernels, scratch.normed.data());
    x = scratch.normed.data();
  }
  const int64_t turned = p.num_turned();
  if (p.interleaved) {
    turn_neighbours<Output>(x, static_cast<size_t>(turned), kernels, scratch, out);
  } else {
    Output::rotate(kernels, x, scratch.cosines.data(), scratch.sines.data(), turned / 2, out);
  }
  if (turned < p.head_dim) Output::copy(kernels, x + turned, p.head_dim - turned, out + turned);
}

template <typename Output>
void split_row(const RopeQkvParams& p, int64_t row, const RowKernels& kernels,
               RowScratch& scratch) {
  using Element = typename Output::Element;
  const int64_t dim = p.head_dim;
  const float* q = static_cast<const float*>(p.qkv) +
                   row * (p.num_query_heads + 2 * int64_t{p.num_kv_heads}) * dim;
  const float* k = q + p.num_query_heads * dim;
  const float* v = k + p.num_kv_heads * dim;

  Element* q_out = static_cast<Element*>(p.q) + row * p.num_query_heads * dim;
  for (int64_t h = 0; h < p.num_query_heads; ++h) {
    turn_head<Output>(p, q + h * dim, HeadNorm::of(p, row, h, /*of_q=*/true), kernels, scratch,
                      q_out + h * dim);
  }
  for (int64_t h = 0; h < p.num_kv_heads; ++h) {
    const int64_t begin = (h * p.kv_stride + row) * dim;
    turn_head<Output>(p, k + h * dim, HeadNorm::of(p, row, h, /*of_q=*/false), kernels, scratch,
                      static_cast<Element*>(p.k) + begin);
    Output::copy(kernels, v + h * dim, dim, static_cast<Element*>(p.v) + begin);
  }
}

void turns_of_row(const RopeQkvParams& p, int64_t row, const RowKernels& kernels,
                  RowScratch& scratch) {
  kernels.cos_sin(static_cast<float>(p.positions[row]), p.inv_freq, p.num_turned() / 2,
                  scratch.cosines.data(), scratch.sines.data());
  if (p.turn_scale == 1) return;
  for (float& cosine : scratch.cosines) cosine *= p.turn_scale;
  for (float& sine : scratch.sines) sine *= p.turn_scale;
}

}  // namespace

void qkv_squares(const QkvSquaresParams& params, const Context& context) {
  MR_CHECK(params.qkv_dtype == DType::kFloat32, "qkv_squares: of {}", dtype_name(params.qkv_dtype));
  const RowKernels& kernels = row_kernels(context.simd);
  const int64_t q_width = int64_t{params.num_query_heads} * params.head_dim;
  const int64_t k_width = int64_t{params.num_kv_heads} * params.head_dim;
  parallel_ranges(params.num_rows, context.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* q = static_cast<const float*>(params.qkv) + r * (q_width + 2 * k_width);
      const float* k = q + q_width;
      params.squares[2 * r] = kernels.dot(q, q, q_width);
      params.squares[2 * r + 1] = kernels.dot(k, k, k_width);
    }
  });
}

void rope_qkv(const RopeQkvParams& params, const Context& context) {
  MR_CHECK(params.dtype != DType::kFloat16, "rope_qkv: float16 is never written");
  MR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0, "rope_qkv: head_dim {}",
           params.head_dim);
  MR_CHECK(params.num_kv_heads == 0 || params.kv_stride >= params.num_rows,
           "rope_qkv: {} rows, heads {} tokens apart", params.num_rows, params.kv_stride);
  MR_CHECK(params.num_turned() % 2 == 0 && params.num_turned() <= params.head_dim,
           "rope_qkv: {} of {} elements turn", params.rotary_dim, params.head_dim);
  MR_CHECK((params.q_norm == nullptr) == (params.k_norm == nullptr),
           "rope_qkv: one of Q and K is normalised");
  MR_CHECK(params.squares == nullptr || params.q_norm != nullptr,
           "rope_qkv: squares of norms without weights");
  const RowKernels& kernels = row_kernels(context.simd);
  parallel_ranges(params.num_rows, context.num_threads, [&](int64_t begin, int64_t end) {
    RowScratch scratch(params);
    for (int64_t r = begin; r < end; ++r) {
      turns_of_row(params, r, kernels, scratch);
      if (params.dtype == DType::kFloat32) {
        split_row<Float32Output>(params, r, kernels, scratch);
      } else {
        split_row<BFloat16Output>(params, r, kernels, scratch);
      }
    }
  });
}

}  // namespace millrace::kernels::cpu
