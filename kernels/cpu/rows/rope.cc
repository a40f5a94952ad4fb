#include <algorithm>
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

// One row: `turn` holds head_dim / 2 cosines, then as many sines.
template <typename Output>
void split_row(const RopeQkvParams& p, int64_t row, const float* turn, const RowKernels& kernels) {
  using Element = typename Output::Element;
  const int64_t dim = p.head_dim;
  const int64_t half = dim / 2;
  const float* q = static_cast<const float*>(p.qkv) +
                   row * (p.num_query_heads + 2 * int64_t{p.num_kv_heads}) * dim;
  const float* k = q + p.num_query_heads * dim;
  const float* v = k + p.num_kv_heads * dim;

  Element* q_out = static_cast<Element*>(p.q) + row * p.num_query_heads * dim;
  for (int64_t h = 0; h < p.num_query_heads; ++h) {
    Output::rotate(kernels, q + h * dim, turn, turn + half, half, q_out + h * dim);
  }
  for (int64_t h = 0; h < p.num_kv_heads; ++h) {
    const int64_t begin = (h * p.kv_stride + row) * dim;
    Output::rotate(kernels, k + h * dim, turn, turn + half, half,
                   static_cast<Element*>(p.k) + begin);
    Output::copy(kernels, v + h * dim, dim, static_cast<Element*>(p.v) + begin);
  }
}

}  // namespace

void rope_qkv(const RopeQkvParams& params, const Context& context) {
  MR_CHECK(params.dtype != DType::kFloat16, "rope_qkv: float16 is never written");
  MR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0, "rope_qkv: head_dim {}",
           params.head_dim);
  MR_CHECK(params.kv_stride >= params.num_rows, "rope_qkv: {} rows, heads {} tokens apart",
           params.num_rows, params.kv_stride);
  const int64_t half = params.head_dim / 2;
  const RowKernels& kernels = row_kernels(context.simd);
  parallel_ranges(params.num_rows, context.num_threads, [&](int64_t begin, int64_t end) {
    std::vector<float> turn(static_cast<size_t>(params.head_dim));
    for (int64_t r = begin; r < end; ++r) {
      kernels.cos_sin(static_cast<float>(params.positions[r]), params.inv_freq, half, turn.data(),
                      turn.data() + half);
      if (params.dtype == DType::kFloat32) {
        split_row<Float32Output>(params, r, turn.data(), kernels);
      } else {
        split_row<BFloat16Output>(params, r, turn.data(), kernels);
      }
    }
  });
}

}  // namespace millrace::kernels::cpu
