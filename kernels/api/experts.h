// Mixtures of experts (Shazeer et al. 2017, "Outrageously Large Neural Networks"): a row goes through
// the few of many small MLPs that a router chooses for it. What a row gets follows from that row
// alone, but for the rounding of products.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/units.h"
#include "kernels/api/activation.h"
#include "kernels/api/float8.h"
#include "kernels/api/matrix.h"

namespace millrace::kernels {

// How much each of a row's experts counts, from the router's logits.
enum class ExpertWeighting {
  kSoftmax,        // softmax over all experts
  kChosenSoftmax,  // softmax over the chosen ones, whose weights sum to 1
  kSigmoid,        // 1 / (1 + exp(-logit)) of each
  kChosenSigmoid,  // the same, divided by their sum over the chosen ones
};

// logits = a router^T (+ bias). A row's experts are those of the largest logits; of equal ones, the lower
// index. The same row gives the same bits, whatever rows are beside it and however many threads
// there are: tensor-parallel ranks choose alike. (Instruction sets may differ in the last bit.)
struct RouteParams {
  ConstMatrix a;                  // [rows, k], float32 or bfloat16
  const float* router = nullptr;  // [num_experts, k]
  const float* bias = nullptr;    // [num_experts] or null
  // [num_experts] or null: experts are chosen by the sigmoids of their logits and this, which has no part
  // in the weights (DeepSeek-AI 2024, "DeepSeek-V3", eq. 16). With weightings by sigmoids.
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
  // What products begin with, of each expert as many as it has rows; or null.
  const float* gate_up_bias = nullptr;  // [num_experts * 2 n]
  const float* down_bias = nullptr;     // [num_experts * k]
  // Scratch. What is float32 only one expert at a time needs; others do not touch it.
  void* gathered = nullptr;   // [s, k], the dtype of a
  float* products = nullptr;  // [s, 2 n]
  void* activated = nullptr;  // [s, n], the dtype of a
  float* outputs = nullptr;   // [s, k]
  float* out = nullptr;       // [rows, k]
  bool accumulate = false;    // adds to `out`
};

// The same of 8-bit floats (kernels/api/float8.h), without biases: what the activation leaves is rounded to
// `dtype` and quantised by row for the second product. k, n and strides between rows are multiples of
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

// Rows of scratch that experts() needs for `num_rows` of input. One expert at a time (`row_step` 0)
// may have all of them. Else each choice has a row, those of each expert from a multiple of
// `row_step` on. More rows of input never need less.
inline int64_t expert_scratch_rows(int64_t num_rows, int64_t num_experts, int64_t experts_per_row,
                                   int64_t row_step) {
  if (row_step == 0) return num_rows;
  const int64_t num_choices = num_rows * experts_per_row;
  const int64_t num_chosen = std::min(num_experts, num_choices);
  return (num_choices + num_chosen * (row_step - 1)) / row_step * row_step;
}

// The height of the product for `num_rows` >= 1 rows: the next number whose binary digits behind
// the first three are zeros, at most `max_rows`. Up to a fourth more work, a tenth on average, for
// 36 heights up to 1024 instead of 1024: every height is a program that oneDNN compiles for a
// millisecond (kernels/cpu/runtime/matmul_cache.h).
inline int64_t expert_product_rows(int64_t num_rows, int64_t max_rows) {
  const int num_digits = std::bit_width(static_cast<uint64_t>(num_rows));
  const int64_t step = int64_t{1} << std::max(num_digits - 3, 0);
  return std::min(round_up(num_rows, step), max_rows);
}

}  // namespace millrace::kernels
