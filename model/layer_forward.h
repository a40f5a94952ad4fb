// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one transformer layer around attention, for any number of rows. Prefill and
// decode share it. Written once, against kernels/api; knows nothing of how rows were dealt to ranks
// or where K and V live.
#pragma once

#include <cstdint>
#include <functional>

#include "common/result.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::model {

// Holds scratch for at most `max_rows` rows a call. One thread at a time. `device` and `weights`
// outlive it.
class LayerForward {
 public:
  static Result<LayerForward> create(kernels::Device& device, const ModelWeights& weights,
                                     int64_t max_rows);

  int64_t max_rows() const { return max_rows_; }

  // Where the projected and rotated rows go; see RopeQkvParams. Pointers of what is not projected
  // are not used.
  struct QkvOutput {
    DType dtype = DType::kFloat32;
    void* q = nullptr;  // [num_rows, query heads of this rank, head_dim]
    void* k = nullptr;  // [kv heads of this rank, kv_stride, head_dim]
    void* v = nullptr;
    int64_t kv_stride = 0;  // tokens
  };
  // Sums `count` floats of device memory over the tensor-parallel ranks, in the device's order of
  // operations; all ranks get the same bits.
  using SumOverTp = std::function<Result<void>(float* data, int64_t count)>;
  // `prompt_tokens`: length of the prompt that the rows belong to or follow; some models rotate the
  // rows of long prompts differently. `sum_over_tp` is called, once on each rank, where norms span
  // the heads of several ranks (ModelConfig::joint_qk_norm), and its error is returned. Elsewhere
  // it may be empty, and nothing fails.
  Result<void> qkv(int32_t layer, const float* hidden, int64_t num_rows, const int32_t* positions,
                   int64_t prompt_tokens, const QkvOutput& out, const SumOverTp& sum_over_tp = {});
  // Each computes a part of the same. Products of other widths may round differently in the last
  // bit.
  Result<void> q(int32_t layer, const float* hidden, int64_t num_rows, const int32_t* positions,
                 int64_t prompt_tokens, const QkvOutput& out, const SumOverTp& sum_over_tp = {});
  Result<void> kv(int32_t layer, const float* hidden, int64_t num_rows, const int32_t* positions,
                  int64_t prompt_tokens, const QkvOutput& out, const SumOverTp& sum_over_tp = {});

  // The two halves of the layer after attention. Each adds this rank's part of the sum over
  // tensor-parallel ranks to `out` [num_rows, hidden] when `accumulate`, else overwrites it.
  void attention_output(int32_t layer, const void* attention, int64_t num_rows, float* out,
                        bool accumulate);
  // The MLP, or the layer's mixture of experts.
  void mlp(int32_t layer, const float* hidden, int64_t num_rows, float* out, bool accumulate);
  // Add the halves' sums over all tensor-parallel ranks to the residual stream: hidden += sum.
  // Where the model does so, `sum` is normalised first; neither half may then accumulate into
  // `hidden` (ModelConfig::norms_sums).
  void add_attention(int32_t layer, float* sum, int64_t num_rows, float* hidden);
  void add_mlp(int32_t layer, float* sum, int64_t num_rows, float* hidden);

  // Final norm and this rank's slice of the vocabulary: [num_rows, vocab_end - vocab_begin].
  void logits(const float* hidden, int64_t num_rows, float* out);

 private:
  LayerForward(kernels::Device& device, const ModelWeights& weights, int64_t max_rows)
      : device_(&device),
        weights_(&weights),
        max_rows_(max_rows),
        projection_dtype_(device.info().projection_dtype(weights.compute_dtype)) {}

  // Consecutive heads in the rows of qkv weights: query heads, then heads of K, then of V.
  struct QkvHeads {
    int64_t first = 0;
    int32_t num_query_heads = 0;
    int32_t num_kv_heads = 0;
  };
  Result<void> project(const QkvHeads& heads, int32_t layer, const float* hidden, int64_t num_rows,
                       const int32_t* positions, int64_t prompt_tokens, const QkvOutput& out,
                       const SumOverTp& sum_over_tp);
  // Computes `squares_`, summed over all ranks, from `projected_`.
  Result<void> sum_squares(const QkvHeads& heads, int64_t num_rows, const SumOverTp& sum_over_tp);

  kernels::Matrix normed(int64_t num_rows) const;
  kernels::Float8Matrix quantized(int64_t num_rows, int64_t cols) const;
  Result<void> allocate_quantized();
  Result<void> allocate_experts();
  // Rows of scratch for the experts of max_rows rows, and for the expert that all rows choose.
  int64_t expert_rows() const;
  int64_t shared_expert_rows() const;
  // run_mlp takes the rows in `normed_`; also used for an expert that all rows choose.
  void run_mlp(const kernels::ConstMatrix& gate_up, const kernels::ConstMatrix& down,
               int64_t num_rows, float* out, bool accumulate);
  // The same for quantised rows, which it overwrites.
  void run_float8_mlp(const kernels::ConstFloat8Matrix& rows,
                      const kernels::ConstFloat8Matrix& gate_up,
                      const kernels::ConstFloat8Matrix& down, float* out, bool accumulate);
  void run_mixture(const LayerWeights& layer, int64_t num_rows, float* out, bool accumulate);
  void route(const ExpertWeights& experts, int64_t num_rows);
  // `rows`: those in `normed_`, quantised where the experts are; not changed.
  void run_experts(const ExpertWeights& experts, const kernels::ConstFloat8Matrix& rows,
                   int64_t num_rows, float* out, bool accumulate);
  void rms_norm(const float* hidden, const float* weight, int64_t num_rows);
  void add_sum(const float* norm, float* sum, int64_t num_rows, float* hidden);
  // Used where the layer is quantised; the result is in `quantized_`.
  kernels::ConstFloat8Matrix float8_rms_norm(const float* hidden, const float* weight,
                                             int64_t num_rows);
  kernels::ConstFloat8Matrix quantize(const kernels::ConstMatrix& rows);

  kernels::Device* device_;
  const ModelWeights* weights_;
  int64_t max_rows_;
  DType projection_dtype_;
  kernels::DeviceBuffer normed_;  // [max_rows, hidden], compute dtype
  // [max_rows, qkv width], projection dtype; then gate and up where the device does not fuse them
  kernels::DeviceBuffer projected_;
  kernels::DeviceBuffer squares_;    // [max_rows, 2] float32, where norms are over all heads
  kernels::DeviceBuffer activated_;  // [max_rows or those of experts, ffn], compute dtype
  // Used where the model is quantised: the input of its next product.
  kernels::DeviceBuffer quantized_;   // [max_rows, the widest of what products read] 8-bit floats
  kernels::DeviceBuffer row_scales_;  // [max_rows] float32
  // Used where the model has experts: the experts that each row chose, then the rows of one expert
  // or of all.
  kernels::DeviceBuffer chosen_;          // [max_rows, experts a token] int32
  kernels::DeviceBuffer chosen_weights_;  // the same, float32
  kernels::DeviceBuffer gathered_;        // [expert_rows, hidden], compute dtype
  // Outputs of the same shape, float32, where the device computes one expert at a time.
  kernels::DeviceBuffer outputs_;
  // Used where experts are quantised: the input of their second products.
  kernels::DeviceBuffer expert_codes_;   // [expert_rows, ffn] 8-bit floats
  kernels::DeviceBuffer expert_scales_;  // [expert_rows] float32
};

}  // namespace millrace::model
