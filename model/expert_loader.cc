// SPDX-License-Identifier: Apache-2.0
#include "model/expert_loader.h"

#include <array>
#include <utility>

namespace millrace::model {

namespace {

// Number `number` of `count` equal tensors [rows, cols] that are consecutive in `all`.
TensorSlice part_of(const Tensor& all, int64_t number, int64_t count, int64_t rows, int64_t cols) {
  Tensor part = all;
  part.shape = {rows, cols};
  const auto slice_of = [&](std::span<const std::byte> bytes) {
    const size_t size = bytes.size() / static_cast<size_t>(count);
    return bytes.subspan(static_cast<size_t>(number) * size, size);
  };
  part.bytes = slice_of(all.bytes);
  part.block_scales = slice_of(all.block_scales);
  return TensorSlice::whole(std::move(part));
}

// gate and up of each expert, which alternate, one below the other.
std::vector<TensorSlice> unravel(const std::vector<TensorSlice>& experts, int64_t first,
                                 int64_t count) {
  std::vector<TensorSlice> parts;
  for (const auto& expert : experts) {
    for (const int64_t number : {0, 1}) {
      parts.push_back(expert.every(number, 2).rows(first, count));
    }
  }
  return parts;
}

kernels::ExpertWeighting weighting_of(const ExpertsConfig& config) {
  using kernels::ExpertWeighting;
  if (config.by_sigmoids) {
    return config.weights_sum_to_one ? ExpertWeighting::kChosenSigmoid : ExpertWeighting::kSigmoid;
  }
  return config.weights_sum_to_one ? ExpertWeighting::kChosenSoftmax : ExpertWeighting::kSoftmax;
}

}  // namespace

Result<void> ExpertLoader::load(const std::string& prefix, LayerWeights& layer) {
  const auto& config = weights_->config.experts;
  layer.experts = {.num_experts = config.num_experts,
                   .experts_per_token = config.experts_per_token,
                   .weighting = weighting_of(config),
                   .weight_factor = static_cast<float>(config.weight_factor)};
  return config.names == ExpertsConfig::Names::kGptOss ? load_together(prefix, layer.experts)
                                                       : load_separate(prefix, layer);
}

ExpertLoader::Share ExpertLoader::share(int64_t all) const {
  const int64_t count = all / weights_->tp.size;
  return {.first = weights_->tp.rank * count, .count = count};
}

Result<TensorSlice> ExpertLoader::matrix(const std::string& name, int64_t rows,
                                         int64_t cols) const {
  MR_ASSIGN_OR_RETURN(auto tensor, tensors_->find(name, std::array{rows, cols}));
  return TensorSlice::whole(std::move(tensor));
}

Result<void> ExpertLoader::load_router(const std::string& name, ExpertWeights& experts) {
  MR_ASSIGN_OR_RETURN(const auto router, matrix(name, experts.num_experts, hidden()));
  MR_ASSIGN_OR_RETURN(experts.router, uploader_->stacked_vector(std::array{router}));
  return {};
}

Result<void> ExpertLoader::load_separate(const std::string& prefix, LayerWeights& layer) {
  using kernels::ExpertWeighting;
  const auto& config = weights_->config.experts;
  const bool minimax = config.names == ExpertsConfig::Names::kMiniMax;
  const bool mixtral = minimax || config.names == ExpertsConfig::Names::kMixtral;
  const bool hy3 = config.names == ExpertsConfig::Names::kHy3;
  const std::string mixture = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
  Names names{.router = mixture + (hy3 ? "router.gate.weight" : "gate.weight"),
              .gate = mixtral ? "w1" : "gate_proj",
              .up = mixtral ? "w3" : "up_proj",
              .down = mixtral ? "w2" : "down_proj"};
  for (int32_t i = 0; i < config.num_experts; ++i) {
    names.experts.push_back(fmt::format("{}experts.{}.", mixture, i));
  }
  MR_RETURN_IF_ERROR(stack(names, config.ffn_size, layer.experts));
  if (config.by_sigmoids) {
    const std::array corrections{int64_t{config.num_experts}};
    const char* const name = hy3       ? "expert_bias"
                             : minimax ? "e_score_correction_bias"
                                       : "gate.e_score_correction_bias";
    MR_ASSIGN_OR_RETURN(auto correction, tensors_->find(mixture + name, corrections));
    MR_ASSIGN_OR_RETURN(
        layer.experts.correction,
        uploader_->stacked_vector(std::array{TensorSlice::whole(std::move(correction))}));
  }
  if (config.shared_ffn_size == 0) return {};
  if (config.by_sigmoids) {
    names.router.clear();
    names.experts = {mixture + (hy3 ? "shared_mlp." : "shared_experts.")};
  } else {
    names.router = mixture + "shared_expert_gate.weight";
    names.experts = {mixture + "shared_expert."};
  }
  layer.shared_expert = {
      .num_experts = 1, .experts_per_token = 1, .weighting = ExpertWeighting::kSigmoid};
  return stack(names, config.shared_ffn_size, layer.shared_expert);
}

// `all`: the width of an expert on all ranks together.
Result<void> ExpertLoader::stack(const Names& names, int64_t all, ExpertWeights& experts) {
  const auto [first, count] = share(all);
  std::vector<TensorSlice> gate_up, down;
  for (const auto& expert : names.experts) {
    for (const char* name : {names.gate, names.up}) {
      MR_ASSIGN_OR_RETURN(const auto rows,
                          matrix(fmt::format("{}{}.weight", expert, name), all, hidden()));
      gate_up.push_back(rows.rows(first, count));
    }
    MR_ASSIGN_OR_RETURN(const auto columns,
                        matrix(fmt::format("{}{}.weight", expert, names.down), hidden(), all));
    down.push_back(columns.cols(first, count));
  }
  if (!names.router.empty()) MR_RETURN_IF_ERROR(load_router(names.router, experts));
  if (weights_->quantization != Quantization::kNone) {
    MR_ASSIGN_OR_RETURN(experts.float8.gate_up, uploader_->stack_float8(gate_up));
    MR_ASSIGN_OR_RETURN(experts.float8.down, uploader_->stack_float8(down));
    return {};
  }
  MR_ASSIGN_OR_RETURN(experts.gate_up, uploader_->stack(gate_up, weights_->compute_dtype));
  MR_ASSIGN_OR_RETURN(experts.down, uploader_->stack(down, weights_->compute_dtype));
  return {};
}

Result<void> ExpertLoader::load_together(const std::string& prefix, ExpertWeights& experts) {
  const std::string mlp = prefix + "mlp.";
  const int64_t all = weights_->config.experts.ffn_size;
  const auto [first, count] = share(all);
  MR_RETURN_IF_ERROR(load_router(mlp + "router.weight", experts));
  MR_ASSIGN_OR_RETURN(const auto bias, vectors(mlp + "router.bias", 1));
  MR_ASSIGN_OR_RETURN(experts.router_bias, uploader_->stacked_vector(bias));

  MR_ASSIGN_OR_RETURN(const auto gate_up,
                      matrices(mlp + "experts.gate_up_proj", 2 * all, hidden()));
  MR_ASSIGN_OR_RETURN(experts.gate_up,
                      uploader_->stack(unravel(gate_up, first, count), weights_->compute_dtype));
  MR_ASSIGN_OR_RETURN(const auto gate_up_bias, vectors(mlp + "experts.gate_up_proj_bias", 2 * all));
  MR_ASSIGN_OR_RETURN(experts.gate_up_bias,
                      uploader_->stacked_vector(unravel(gate_up_bias, first, count)));

  MR_ASSIGN_OR_RETURN(auto down, matrices(mlp + "experts.down_proj", hidden(), all));
  for (auto& expert : down) expert = expert.cols(first, count);
  MR_ASSIGN_OR_RETURN(experts.down, uploader_->stack(down, weights_->compute_dtype));
  MR_ASSIGN_OR_RETURN(const auto down_bias, vectors(mlp + "experts.down_proj_bias", hidden()));
  if (weights_->tp.rank != 0) return {};  // the ranks' products sum, and one of them has the bias
  MR_ASSIGN_OR_RETURN(experts.down_bias, uploader_->stacked_vector(down_bias));
  return {};
}

Result<std::vector<TensorSlice>> ExpertLoader::matrices(const std::string& name, int64_t rows,
                                                        int64_t cols) const {
  const int64_t count = weights_->config.experts.num_experts;
  const bool mxfp4 = tensors_->contains(name + "_blocks");
  const std::array shape{count, mxfp4 ? rows : cols, mxfp4 ? cols : rows};
  MR_ASSIGN_OR_RETURN(const auto all,
                      mxfp4 ? tensors_->find_mxfp4(name, shape) : tensors_->find(name, shape));
  std::vector<TensorSlice> experts;
  for (int64_t i = 0; i < count; ++i) {
    const auto expert = part_of(all, i, count, shape[1], shape[2]);
    experts.push_back(mxfp4 ? expert : expert.transpose());
  }
  return experts;
}

// A column of `count` numbers for each expert.
Result<std::vector<TensorSlice>> ExpertLoader::vectors(const std::string& name,
                                                       int64_t count) const {
  const int64_t num_experts = weights_->config.experts.num_experts;
  const std::array shape{num_experts, count};
  // Routers have one number for each expert, and the tensor has no second dimension.
  MR_ASSIGN_OR_RETURN(const auto all,
                      tensors_->find(name, std::span(shape).first(count == 1 ? 1 : 2)));
  std::vector<TensorSlice> experts;
  for (int64_t i = 0; i < num_experts; ++i) {
    experts.push_back(part_of(all, i, num_experts, count, 1));
  }
  return experts;
}

}  // namespace millrace::model
