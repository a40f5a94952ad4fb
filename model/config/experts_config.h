// SPDX-License-Identifier: Apache-2.0
// The mixture of experts of a model: which layers have one instead of an MLP, and its shape.
#pragma once

#include <cstdint>
#include <set>
#include <string_view>

namespace millrace::model {

struct ExpertsConfig {
  // The naming scheme of a layer's tensors.
  enum class Names {
    kQwen,     // mlp.gate, mlp.experts.N.{gate,up,down}_proj
    kMixtral,  // block_sparse_moe.gate, block_sparse_moe.experts.N.{w1,w3,w2}
    // mlp.router, with a bias, and mlp.experts.{gate_up_proj,down_proj} of all experts, with
    // biases. gate and up alternate; [expert, in, out], or MXFP4 [expert, out, in].
    kGptOss,
    // As kQwen, with mlp.gate.e_score_correction_bias, and mlp.shared_experts, which has no gate.
    kGlm4,
    // As kGlm4, under the names mlp.router.gate, mlp.experts, mlp.expert_bias, mlp.shared_mlp.
    kHy3,
    kMiniMax,  // as kMixtral, and block_sparse_moe.e_score_correction_bias
  };

  int32_t num_experts = 0;  // 0: all layers have an MLP
  int32_t experts_per_token = 0;
  int32_t ffn_size = 0;             // of each expert
  bool weights_sum_to_one = false;  // over a token's experts; else a softmax over all
  bool by_sigmoids = false;         // sigmoids, not softmax; chosen with a correction
  double weight_factor = 1;
  int32_t shared_ffn_size = 0;     // of an MLP for all tokens, times a sigmoid; 0: none
  std::set<int32_t> dense_layers;  // those that still have an MLP
  Names names = Names::kQwen;

  bool operator==(const ExpertsConfig&) const = default;
};

// The field of config.json that has an expert's width.
inline std::string_view expert_width_field(const ExpertsConfig& experts) {
  using Names = ExpertsConfig::Names;
  const bool mlp_field = experts.names == Names::kMixtral || experts.names == Names::kGptOss ||
                         experts.names == Names::kMiniMax;
  return mlp_field ? "intermediate_size" : "moe_intermediate_size";
}

}  // namespace millrace::model
