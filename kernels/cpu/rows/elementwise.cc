// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {
namespace {

// Elements that one thread handles in about the time a parallel region costs to start (10 us).
constexpr int64_t kElementsPerThread = 32768;

// The number of threads worth starting for this many elements. Results do not depend on it.
int64_t threads_for(int64_t num_elements, const Context& context) {
  return std::min<int64_t>(context.num_threads, num_elements / kElementsPerThread + 1);
}

void check_output(const Matrix& out, const char* operation) {
  MR_CHECK(out.dtype != DType::kFloat16, "{}: float16 is never written", operation);
  MR_CHECK(out.row_stride >= out.cols, "{}: rows of {} elements, {} apart", operation, out.cols,
           out.row_stride);
}

template <typename T>
T* row_of(const Matrix& matrix, int64_t row) {
  return static_cast<T*>(matrix.data) + row * matrix.row_stride;
}

void embed_row(const ConstMatrix& table, int64_t row, const RowKernels& kernels, float* out) {
  const int64_t begin = row * table.row_stride;
  switch (table.dtype) {
    case DType::kFloat32:
      std::copy_n(static_cast<const float*>(table.data) + begin, table.cols, out);
      return;
    case DType::kBFloat16:
      kernels.widen_bf16(static_cast<const BFloat16*>(table.data) + begin, table.cols, out);
      return;
    case DType::kFloat16:
      kernels.widen_f16(static_cast<const Float16*>(table.data) + begin, table.cols, out);
      return;
  }
}

void activate_row(const Activation& activation, const RowKernels& kernels, const float* gate,
                  int64_t count, float* out) {
  const float* up = gate + count;
  switch (activation.kind) {
    case Activation::Kind::kSilu:
      return kernels.silu_mul_f32(gate, up, count, out);
    case Activation::Kind::kGeluTanh:
      return kernels.gelu_mul_f32(gate, up, count, out);
    case Activation::Kind::kClamped:
      return kernels.clamped_mul_f32(gate, up, activation.alpha, activation.limit, count, out);
  }
}

void activate_row(const Activation& activation, const RowKernels& kernels, const float* gate,
                  int64_t count, BFloat16* out) {
  const float* up = gate + count;
  switch (activation.kind) {
    case Activation::Kind::kSilu:
      return kernels.silu_mul_bf16(gate, up, count, out);
    case Activation::Kind::kGeluTanh:
      return kernels.gelu_mul_bf16(gate, up, count, out);
    case Activation::Kind::kClamped:
      return kernels.clamped_mul_bf16(gate, up, activation.alpha, activation.limit, count, out);
  }
}

}  // namespace

void embed(const EmbedParams& params, const Context& context) {
  const ConstMatrix& table = params.table;
  const RowKernels& kernels = row_kernels(context.simd);
  const int64_t num_threads = threads_for(params.num_rows * table.cols, context);
  parallel_ranges(params.num_rows, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = params.hidden + r * table.cols;
      embed_row(table, params.token_ids[r], kernels, row);
      if (params.scale == 1) continue;
      for (int64_t c = 0; c < table.cols; ++c) row[c] *= params.scale;
    }
  });
}

void rms_norm(const RmsNormParams& params, const Context& context) {
  const Matrix& out = params.out;
  check_output(out, "rms_norm");
  const RowKernels& kernels = row_kernels(context.simd);
  const int64_t num_threads = threads_for(out.rows * out.cols, context);
  parallel_ranges(out.rows, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = params.x + r * out.cols;
      if (out.dtype == DType::kFloat32) {
        kernels.rms_norm_f32(x, params.weight, params.eps, out.cols, row_of<float>(out, r));
      } else {
        kernels.rms_norm_bf16(x, params.weight, params.eps, out.cols, row_of<BFloat16>(out, r));
      }
    }
  });
}

void activate(const ActivateParams& params, const Context& context) {
  const Matrix& out = params.out;
  check_output(out, "activate");
  const RowKernels& kernels = row_kernels(context.simd);
  const int64_t num_threads = threads_for(out.rows * out.cols, context);
  parallel_ranges(out.rows, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = params.gate_up + r * 2 * out.cols;
      if (out.dtype == DType::kFloat32) {
        activate_row(params.activation, kernels, gate, out.cols, row_of<float>(out, r));
      } else {
        activate_row(params.activation, kernels, gate, out.cols, row_of<BFloat16>(out, r));
      }
    }
  });
}

void add(const AddParams& params, const Context& context) {
  const RowKernels& kernels = row_kernels(context.simd);
  const int64_t num_threads = threads_for(params.count, context);
  parallel_ranges(params.count, num_threads, [&](int64_t begin, int64_t end) {
    kernels.add(params.y + begin, end - begin, params.x + begin);
  });
}

}  // namespace millrace::kernels::cpu
