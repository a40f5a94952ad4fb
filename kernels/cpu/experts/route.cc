// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {
namespace {

// Multiplications that one thread does in about the time a parallel region costs to start.
constexpr int64_t kProductsPerThread = 65536;

// Added to the sum of sigmoids, as in Transformers, to avoid a division by 0 if all of a row's are
// 0.
constexpr double kLeastSum = 1e-20;

// Routes one row at a time, so that its logits do not depend on the number of rows, as those of a
// library's matrix product would.
class RowRouter {
 public:
  RowRouter(const RouteParams& params, const Context& context)
      : p_(params),
        kernels_(row_kernels(context.simd)),
        widened_(static_cast<size_t>(params.a.cols)),
        logits_(static_cast<size_t>(params.num_experts)),
        corrected_(params.correction == nullptr ? 0 : logits_.size()) {}

  void route(int64_t row) {
    const float* x = row_of(row);
    for (int64_t e = 0; e < p_.num_experts; ++e) {
      logits_[static_cast<size_t>(e)] = kernels_.dot(x, p_.router + e * p_.a.cols, p_.a.cols) +
                                        (p_.bias == nullptr ? 0 : p_.bias[e]);
    }
    for (size_t e = 0; e < corrected_.size(); ++e) {
      corrected_[e] = static_cast<float>(sigmoid(static_cast<int32_t>(e))) + p_.correction[e];
    }
    const auto count = static_cast<size_t>(p_.experts_per_row);
    const std::span experts(p_.experts + row * p_.experts_per_row, count);
    const std::span weights(p_.weights + row * p_.experts_per_row, count);
    choose(experts);
    weigh(experts, weights);
  }

 private:
  const float* row_of(int64_t row) {
    const int64_t first = row * p_.a.row_stride;
    if (p_.a.dtype == DType::kFloat32) return static_cast<const float*>(p_.a.data) + first;
    kernels_.widen_bf16(static_cast<const BFloat16*>(p_.a.data) + first, p_.a.cols,
                        widened_.data());
    return widened_.data();
  }

  // By selection, because few are chosen. NaN logits still choose some expert.
  void choose(std::span<int32_t> experts) const {
    for (size_t n = 0; n < experts.size(); ++n) {
      const auto chosen = experts.first(n);
      int32_t best = -1;
      for (int32_t e = 0; e < p_.num_experts; ++e) {
        if (best >= 0 && !(key(e) > key(best))) continue;
        if (std::ranges::find(chosen, e) == chosen.end()) best = e;
      }
      experts[n] = best;
    }
  }

  // Computes in double, with one rounding at the end.
  void weigh(std::span<const int32_t> experts, std::span<float> weights) const {
    if (p_.weighting == ExpertWeighting::kSigmoid ||
        p_.weighting == ExpertWeighting::kChosenSigmoid) {
      double sum = 1;
      if (p_.weighting == ExpertWeighting::kChosenSigmoid) {
        sum = kLeastSum;
        for (const int32_t e : experts) sum += sigmoid(e);
      }
      std::ranges::transform(experts, weights.begin(), [&](int32_t e) {
        return static_cast<float>(sigmoid(e) / sum * p_.factor);
      });
      return;
    }
    const double largest = logit(experts.front());
    double sum = 0;
    if (p_.weighting == ExpertWeighting::kSoftmax) {
      for (const double logit : logits_) sum += std::exp(logit - largest);
    } else {
      for (const int32_t e : experts) sum += std::exp(logit(e) - largest);
    }
    std::ranges::transform(experts, weights.begin(), [&](int32_t e) {
      return static_cast<float>(std::exp(logit(e) - largest) / sum * p_.factor);
    });
  }

  double logit(int32_t expert) const { return logits_[static_cast<size_t>(expert)]; }
  double sigmoid(int32_t expert) const { return 1 / (1 + std::exp(-logit(expert))); }
  // The experts with the largest keys are chosen.
  float key(int32_t expert) const {
    return (corrected_.empty() ? logits_ : corrected_)[static_cast<size_t>(expert)];
  }

  const RouteParams& p_;
  const RowKernels& kernels_;
  std::vector<float> widened_;
  std::vector<float> logits_;
  std::vector<float> corrected_;  // sigmoids; empty where the logits decide
};

}  // namespace

void route(const RouteParams& params, const Context& context) {
  MR_CHECK(params.a.dtype != DType::kFloat16, "route: rows are {}", dtype_name(params.a.dtype));
  MR_CHECK(params.experts_per_row >= 1 && params.experts_per_row <= params.num_experts,
           "{} of {} experts a row", params.experts_per_row, params.num_experts);
  const int64_t products = params.a.rows * params.a.cols * params.num_experts;
  const int64_t num_threads =
      std::min<int64_t>(context.num_threads, products / kProductsPerThread + 1);
  parallel_ranges(params.a.rows, num_threads, [&](int64_t begin, int64_t end) {
    RowRouter router(params, context);
    for (int64_t row = begin; row < end; ++row) router.route(row);
  });
}

}  // namespace millrace::kernels::cpu
