// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts (Shazeer et al. 2017, "Outrageously Large Neural Networks"): a router chooses, for
// each row, a few of many small MLPs. A row's result depends on that row alone, except for the rounding of
// products.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/units.h"
#include "kernels/api/activation.h"
#include "kernels/api/float8_params.h"
#include "kernels/api/matrix.h"

namespace millrace::kernels {

// How much each of a row's experts counts, from the router's logits.
enum class ExpertWeighting {
  kSoftmax,        // softmax over all experts
  kChosenSoftmax,  // softmax over the chosen ones, whose weights sum to 1
  kSigmoid,        // 1 / (1 + exp(-logit)) of each
  kChosenSigmoid,  // the same, divided by their sum over the chosen ones
};

// logits = a router^T (+ bias). A row's experts are those with the largest logits, ties to the lower
// index. The same row gives the same bits whatever the other rows and the number of threads, so
// tensor-parallel ranks make the same choice. (Instruction sets may differ in the last bit.)
struct RouteParams {
  ConstMatrix a;                  // [rows, k], float32 or bfloat16
  const float* router = nullptr;  // [num_experts, k]
  const float* bias = nullptr;    // [num_experts] or null
  // [num_experts] or null: experts are chosen by sigmoid(logit) + correction, while the weights leave the
  // correction out (DeepSeek-AI 2024, "DeepSeek-V3", eq. 16). Only with a sigmoid weighting.
  const float* correction = nullptr;
  int32_t num_experts = 0;
  int32_t experts_per_row = 0;  // 1 to num_experts
  ExpertWeighting weighting = ExpertWeighting::kSoftmax;
  float factor = 1;            // of all weights
  int32_t* experts = nullptr;  // [rows, experts_per_row], the largest logit first
  float* weights = nullptr;    // the same
};

// out[r] = sum of weight * down_e(activation(gate_e a[r], up_e a[r])) over the row's experts e, in
// the order of their numbers where a device computes one expert at a time, in that of the row's
// choices where it computes all at once (DeviceInfo::expert_row_step). Scratch has s rows,
// expert_scratch_rows().
struct ExpertsParams {
  ConstMatrix a;  // [rows, k]
  int32_t num_experts = 0;
  int32_t experts_per_row = 0;
  const int32_t* experts = nullptr;  // [rows, experts_per_row], no expert twice in a row
  const float* weights = nullptr;    // the same
  ConstMatrix gate_up;               // [num_experts * 2 n, k]: of each, gate's rows, then up's
  ConstMatrix down;                  // [num_experts * k, n]
  Activation activation;
  // Biases of the products, by expert, or null.
  const float* gate_up_bias = nullptr;  // [num_experts * 2 n]
  const float* down_bias = nullptr;     // [num_experts * k]
  // Scratch. Only devices that compute one expert at a time use the float32 parts.
  void* gathered = nullptr;   // [s, k], the dtype of a
  float* products = nullptr;  // [s, 2 n]
  void* activated = nullptr;  // [s, n], the dtype of a
  float* outputs = nullptr;   // [s, k]
  float* out = nullptr;       // [rows, k]
  bool accumulate = false;    // adds to `out`
};

// The same with 8-bit floats (kernels/api/float8_params.h) and without biases: the activation's output is rounded to
// `dtype` and quantised by row for the second product. k, n and row strides are multiples of
// DeviceInfo::float8_width_step.
struct Float8ExpertsParams {
  ConstFloat8Matrix a;  // [rows, k]
  int32_t num_experts = 0;
  int32_t experts_per_row = 0;
  const int32_t* experts = nullptr;  // as ExpertsParams
  const float* weights = nullptr;
  ConstFloat8Matrix gate_up;  // [num_experts * 2 n, k]
  ConstFloat8Matrix down;     // [num_experts * k, n]
  Activation activation;
  DType dtype = DType::kBFloat16;  // the compute dtype
  // Scratch.
  void* gathered = nullptr;     // [s, k] in `dtype`; first the codes of rows, a byte each
  float* products = nullptr;    // as ExpertsParams
  void* activated = nullptr;    // [s, n] in `dtype`
  Float8* quantized = nullptr;  // [s, n]
  float* row_scales = nullptr;  // [s], of the rows in `gathered`, then of those in `quantized`
  float* outputs = nullptr;     // as ExpertsParams
  float* out = nullptr;         // [rows, k]
  bool accumulate = false;      // adds to `out`
};

// Rows of scratch that experts() needs for `num_rows` rows of input. With `row_step` 0, experts are computed
// one at a time, and one may have all rows. Otherwise each (row, expert) choice has a row of scratch, and
// the rows of each expert begin at a multiple of `row_step`. Does not decrease with `num_rows`.
inline int64_t expert_scratch_rows(int64_t num_rows, int64_t num_experts, int64_t experts_per_row,
                                   int64_t row_step) {
  if (row_step == 0) return num_rows;
  const int64_t num_choices = num_rows * experts_per_row;
  const int64_t num_chosen = std::min(num_experts, num_choices);
  return (num_choices + num_chosen * (row_step - 1)) / row_step * row_step;
}

// The height of the product for `num_rows` >= 1 rows: rounded up to a number of three significant binary
// digits, at most `max_rows`. Up to a fourth more work, a tenth on average, but only 36 different heights up
// to 1024: for each height oneDNN compiles a program, which takes a millisecond
// (kernels/cpu/runtime/matmul_cache.h).
inline int64_t expert_product_rows(int64_t num_rows, int64_t max_rows) {
  const int num_digits = std::bit_width(static_cast<uint64_t>(num_rows));
  const int64_t step = int64_t{1} << std::max(num_digits - 3, 0);
  return std::min(round_up(num_rows, step), max_rows);
}

}  // namespace millrace::kernels
