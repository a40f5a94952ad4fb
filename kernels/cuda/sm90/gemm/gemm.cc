// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/gemm/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/event_ring.h"
#include "kernels/cuda/sm90/gemm/add_bias.h"
#include "kernels/cuda/sm90/gemm/round_to_bf16.h"

namespace millrace::kernels::cuda {
namespace {

// NVIDIA's recommendation for Hopper; split-k products of few rows need it.
constexpr int64_t kWorkspaceBytes = 32 << 20;

// A layer has four shapes and the vocabulary one, each again for the last, shorter row tile. There
// is room for the shapes of several prompts.
constexpr size_t kMaxPlans = 128;

// Products of fewer rows take so little time that timing their algorithms does not pay off.
constexpr int64_t kTunedRows = 1024;
constexpr int kTimedAlgorithms = 8;
constexpr int kTimedRounds = 2;
// A short product runs at clocks that the power limit does not allow for a layer of products.
constexpr double kBurstSeconds = 0.003;

template <typename Params>
void check_sizes(const Params& p) {
  MR_CHECK(p.a.cols == p.b.cols && p.a.cols > 0, "gemm: a has {} columns, b {}", p.a.cols,
           p.b.cols);
  MR_CHECK(p.c.rows == p.a.rows && p.c.cols == p.b.rows, "gemm: c is {} x {}, a b^T is {} x {}",
           p.c.rows, p.c.cols, p.a.rows, p.b.rows);
}

void check_shapes(const Float8GemmParams& p) {
  check_sizes(p);
  for (const ConstFloat8Matrix& m : {p.a, p.b}) {
    MR_CHECK(m.cols % kFloat8WidthStep == 0 && m.row_stride % kFloat8WidthStep == 0,
             "gemm of 8-bit floats: rows of {}, {} apart; both must be multiples of {}", m.cols,
             m.row_stride, kFloat8WidthStep);
  }
  MR_CHECK(p.c.dtype == DType::kFloat32 || (p.c.dtype == DType::kBFloat16 && !p.accumulate),
           "gemm of 8-bit floats: c is {}, accumulate {}", dtype_name(p.c.dtype), p.accumulate);
}

void check_shapes(const GemmParams& p) {
  check_sizes(p);
  MR_CHECK(p.a.dtype == p.b.dtype && p.a.dtype != DType::kFloat32, "gemm: a is {}, b {}",
           dtype_name(p.a.dtype), dtype_name(p.b.dtype));
  const bool all_bfloat16 = p.c.dtype == DType::kBFloat16 && p.a.dtype == DType::kBFloat16;
  MR_CHECK(p.c.dtype == DType::kFloat32 || (all_bfloat16 && !p.accumulate),
           "gemm of {}: c is {}, accumulate {}", dtype_name(p.a.dtype), dtype_name(p.c.dtype),
           p.accumulate);
}

}  // namespace

Gemm::Gemm(double min_tuned_flops) : min_tuned_flops_(min_tuned_flops) {
  MR_CUBLAS_CHECK(cublasLtCreate(&handle_));
  MR_CUDA_CHECK(cudaMalloc(&workspace_, kWorkspaceBytes));
}

Gemm::~Gemm() {
  cudaFree(workspace_);
  cublasLtDestroy(handle_);
}

const Gemm::Planned& Gemm::planned(const GemmShape& shape, const GemmOperands& operands,
                                   Context& context) {
  const auto known = std::ranges::find_if(
      plans_, [&](const Planned& planned) { return planned.plan.shape() == shape; });
  if (known != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, known);
    return plans_.front();
  }
  if (plans_.size() == kMaxPlans) plans_.pop_back();
  GemmPlan plan(shape);
  const GemmAlgorithm algorithm = choose(plan, operands, context);
  return plans_.emplace_front(std::move(plan), algorithm);
}

GemmAlgorithm Gemm::choose(const GemmPlan& plan, const GemmOperands& operands, Context& context) {
  GemmShape kind = plan.shape();
  const double flops = 2.0 * static_cast<double>(kind.m) * static_cast<double>(kind.n * kind.k);
  if (kind.m < kTunedRows || flops < min_tuned_flops_) {
    return plan.algorithms(handle_, operands, kWorkspaceBytes, 1).front();
  }
  kind.m = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(kind.m)));
  for (const Tuned& tuned : tuned_) {
    if (tuned.kind != kind) continue;
    const auto adapted = plan.adapted(handle_, operands, tuned.algorithm, kWorkspaceBytes);
    if (adapted) return *adapted;
  }
  return tuned_.emplace_back(kind, fastest(plan, operands, context)).algorithm;
}

GemmAlgorithm Gemm::fastest(const GemmPlan& plan, const GemmOperands& operands, Context& context) {
  const auto algorithms = plan.algorithms(handle_, operands, kWorkspaceBytes, kTimedAlgorithms);
  if (algorithms.size() == 1) return algorithms.front();
  // Trials do not write the output: a product that accumulates would do so more than once.
  GemmOperands trial = operands;
  trial.out = context.scratch.allocate<std::byte>(plan.shape().m * plan.shape().c_stride *
                                                  dtype_bytes(plan.shape().c_dtype));
  // Reports a kernel that failed earlier here, rather than as a failure of an algorithm.
  MR_CUDA_CHECK(cudaStreamSynchronize(context.stream));
  EventRing clock(2);
  const auto time_s = [&](size_t number, int repetitions) {
    const TimeMark begin = clock.record(context.stream);
    for (int i = 0; i < repetitions; ++i) {
      plan.run(handle_, algorithms[number], trial, workspace_, context.stream);
    }
    const TimeMark end = clock.record(context.stream);
    const auto& shape = plan.shape();
    check(cudaStreamSynchronize(context.stream),
          fmt::format("algorithm {} of {} for {} x {} x {}", number, algorithms.size(), shape.m,
                      shape.n, shape.k)
              .c_str());
    return clock.elapsed_s(begin, end) / repetitions;
  };
  const double about_s = std::min(time_s(0, 1), time_s(0, 1));
  const int repetitions = static_cast<int>(kBurstSeconds / about_s) + 1;
  std::vector<double> best_s(algorithms.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < kTimedRounds; ++round) {
    for (size_t i = 0; i < algorithms.size(); ++i) {
      best_s[i] = std::min(best_s[i], time_s(i, repetitions));
    }
  }
  return algorithms[static_cast<size_t>(std::ranges::min_element(best_s) - best_s.begin())];
}

void Gemm::run(const GemmShape& shape, const GemmOperands& operands, Context& context) {
  GemmOperands given = operands;
  if (shape.has_bias && shape.c_dtype == DType::kBFloat16) {
    // cuBLASLt requires the bias in the dtype of c. A bfloat16 checkpoint's bias is exact in it.
    auto* rounded = context.scratch.allocate<BFloat16>(shape.n);
    round_to_bf16(static_cast<const float*>(operands.bias), shape.n, rounded, context.stream);
    given.bias = rounded;
  }
  const Planned& planned = this->planned(shape, given, context);
  planned.plan.run(handle_, planned.algorithm, given, workspace_, context.stream);
}

void Gemm::run(const GemmParams& params, Context& context) {
  check_shapes(params);
  if (params.c.rows == 0 || params.c.cols == 0) return;
  run(GemmShape::of(params),
      {.a = params.a.data,
       .b = params.b.data,
       .bias = params.bias,
       .c = params.c.data,
       .out = params.c.data,
       .accumulate = params.accumulate},
      context);
}

void Gemm::run(const Float8GemmParams& params, Context& context) {
  check_shapes(params);
  if (params.c.rows == 0 || params.c.cols == 0) return;
  if (params.bias != nullptr && params.c.dtype == DType::kFloat32) {
    // cuBLASLt adds only bfloat16 biases to products of 8-bit floats. In the few models that have
    // such a bias, the sums are read and written once more instead.
    Float8GemmParams product = params;
    product.bias = nullptr;
    run(product, context);
    return add_bias(params.bias, params.c, context.stream);
  }
  run(GemmShape::of(params),
      {.a = params.a.data,
       .b = params.b.data,
       .a_scales = params.a.scales,
       .b_scales = params.b.scales,
       .bias = params.bias,
       .c = params.c.data,
       .out = params.c.data,
       .accumulate = params.accumulate},
      context);
}

}  // namespace millrace::kernels::cuda
