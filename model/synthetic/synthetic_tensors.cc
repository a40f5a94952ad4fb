// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic/synthetic_tensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <thread>
#include <utility>

#include "common/check.h"
#include "model/synthetic/synthetic_heads.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::model {

namespace {

constexpr int64_t kWindows = 1 << 20;  // places in the table where a row can begin
constexpr double kResidualGrowth = 0.5;
// The scale of what weights add to Q and K. Scores then vary by one or two nats around the score
// that the biases give.
constexpr double kContentScale = 0.5;

// "model.layers.12.self_attn.q_proj.weight" is {12, "self_attn.q_proj.weight"}; a tensor outside
// the layers has -1 and its whole name.
struct TensorName {
  int32_t layer = -1;
  std::string_view part;
};

TensorName parse_name(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return {.part = name};
  const std::string_view rest = name.substr(kPrefix.size());
  TensorName parsed{.part = name};
  const auto [end, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), parsed.layer);
  if (problem != std::errc() || end == rest.data() + rest.size() || *end != '.') return {};
  parsed.part = rest.substr(static_cast<size_t>(end - rest.data()) + 1);
  return parsed;
}

constexpr std::array<std::string_view, 3> kOuterTensors = {"model.embed_tokens.weight",
                                                           "lm_head.weight", "model.norm.weight"};
constexpr std::array<std::string_view, 12> kLayerTensors = {
    "input_layernorm.weight",  "post_attention_layernorm.weight",
    "self_attn.q_proj.weight", "self_attn.k_proj.weight",
    "self_attn.v_proj.weight", "self_attn.o_proj.weight",
    "self_attn.q_proj.bias",   "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",   "mlp.gate_proj.weight",
    "mlp.up_proj.weight",      "mlp.down_proj.weight"};

// "down_proj.weight" for "mlp.experts.7.down_proj.weight"; empty where `part` is not of an expert
// below `num_experts`.
std::string_view expert_part(std::string_view part, int32_t num_experts) {
  constexpr std::string_view kPrefix = "mlp.experts.";
  if (!part.starts_with(kPrefix)) return {};
  part.remove_prefix(kPrefix.size());
  int32_t expert = -1;
  const auto [end, problem] = std::from_chars(part.data(), part.data() + part.size(), expert);
  if (problem != std::errc() || expert < 0 || expert >= num_experts) return {};
  if (end == part.data() + part.size() || *end != '.') return {};
  return part.substr(static_cast<size_t>(end - part.data()) + 1);
}

bool is_layer_tensor(std::string_view part, int32_t num_experts) {
  if (part == "mlp.gate.weight") return num_experts > 0;
  const auto of_expert = expert_part(part, num_experts);
  const auto name = of_expert.empty() ? std::string(part) : fmt::format("mlp.{}", of_expert);
  // Where layers have experts, none has an MLP.
  if (name.starts_with("mlp.") && of_expert.empty() && num_experts > 0) return false;
  if (!of_expert.empty() && !name.ends_with("_proj.weight")) return false;
  return std::ranges::find(kLayerTensors, name) != kLayerTensors.end();
}

// About normal, variance 1: the sum of twelve uniforms. Sums of integers are the same everywhere.
float mixed_normal(uint64_t seed, uint64_t index) {
  uint64_t sum = 0;
  for (uint64_t word = 0; word < 3; ++word) {
    const uint64_t bits = mixed_bits(seed, 3 * index + word);
    for (int shift = 0; shift < 64; shift += 16) sum += (bits >> shift) & 0xffff;
  }
  return static_cast<float>(sum) * 0x1p-16F - 6.0F;
}

// More threads do not fill memory faster.
constexpr int64_t kMaxThreads = 16;

// Calls body(row) for all rows, split over the machine's cores.
template <typename Body>
void for_rows(int64_t num_rows, const Body& body) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const int64_t num_threads = std::clamp<int64_t>(cores, 1, std::min(num_rows, kMaxThreads));
  std::vector<std::jthread> threads;
  for (int64_t t = 0; t < num_threads; ++t) {
    threads.emplace_back(
        [&body, first = num_rows * t / num_threads, end = num_rows * (t + 1) / num_threads] {
          for (int64_t row = first; row < end; ++row) body(row);
        });
  }
}

}  // namespace

SyntheticTensors::SyntheticTensors(const ModelConfig& config, uint64_t seed)
    : config_(config), seed_(seed) {
  MR_CHECK(config.qkv_bias && !config.tied_embeddings,
           "{}: the shapes are too small for the structure of synthetic heads", config.name);
}

bool SyntheticTensors::contains(std::string_view name) const {
  const auto [layer, part] = parse_name(name);
  if (layer < 0) return std::ranges::find(kOuterTensors, part) != kOuterTensors.end();
  return layer < config_.num_layers && is_layer_tensor(part, config_.experts.num_experts);
}

Result<Tensor> SyntheticTensors::find(std::string_view name, std::span<const int64_t> shape) const {
  if (!contains(name)) {
    return error(Errc::kNotFound, "synthetic model {}: no tensor {}", config_.name, name);
  }
  const Values values = make(name, shape);
  return Tensor{.dtype = DType::kBFloat16,
                .shape = {shape.begin(), shape.end()},
                .bytes = std::as_bytes(values.elements),
                .memory = values.memory};
}

SyntheticTensors::Values SyntheticTensors::room_for(int64_t count) const {
  auto memory = memory_.take(count * int64_t{sizeof(BFloat16)});
  const std::span elements(memory->as<BFloat16>(), static_cast<size_t>(count));
  return {std::move(memory), elements};
}

SyntheticTensors::Values SyntheticTensors::rounded(std::span<const float> values) const {
  Values narrow = room_for(std::ssize(values));
  std::ranges::transform(values, narrow.elements.begin(), to_bfloat16);
  return narrow;
}

const std::vector<BFloat16>& SyntheticTensors::table(double scale) const {
  auto& values = tables_[scale];
  if (!values.empty()) return values;
  const int64_t longest_row =
      std::max({config_.hidden_size, config_.ffn_size, config_.experts.ffn_size,
                config_.num_query_heads * config_.head_dim});
  const uint64_t normals = named_seed(seed_, "normals");
  values.resize(static_cast<size_t>(kWindows + longest_row));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = to_bfloat16(mixed_normal(normals, i) * static_cast<float>(scale));
  }
  return values;
}

SyntheticTensors::Values SyntheticTensors::random_matrix(std::string_view name,
                                                         std::span<const int64_t> shape,
                                                         double scale) const {
  const auto& source = table(scale);
  const uint64_t places = named_seed(seed_, name);
  const int64_t num_cols = shape[1];
  Values values = room_for(shape[0] * num_cols);
  for_rows(shape[0], [&](int64_t row) {
    const auto place = static_cast<int64_t>(mixed_bits(places, static_cast<uint64_t>(row)) %
                                            static_cast<uint64_t>(kWindows));
    std::copy_n(source.begin() + place, num_cols, values.elements.begin() + row * num_cols);
  });
  return values;
}

SyntheticTensors::Values SyntheticTensors::embedding(std::string_view name,
                                                     std::span<const int64_t> shape) const {
  Values values = random_matrix(name, shape, /*scale=*/1);
  for (int32_t token = 0; token < shape[0]; ++token) {
    values.elements[static_cast<size_t>(token * shape[1])] =
        to_bfloat16(token_heaviness(seed_, token));
  }
  return values;
}

SyntheticTensors::Values SyntheticTensors::reader(std::string_view name,
                                                  std::span<const int64_t> shape, double scale,
                                                  std::span<const float> first_column) const {
  Values values = random_matrix(name, shape, scale / std::sqrt(static_cast<double>(shape[1])));
  for (int64_t row = 0; row < shape[0]; ++row) {
    const float first = first_column.empty() ? 0.0F : first_column[static_cast<size_t>(row)];
    values.elements[static_cast<size_t>(row * shape[1])] = to_bfloat16(first);
  }
  return values;
}

SyntheticTensors::Values SyntheticTensors::writer(std::string_view name,
                                                  std::span<const int64_t> shape) const {
  const double share = kResidualGrowth / (2.0 * config_.num_layers);
  Values values = random_matrix(name, shape, std::sqrt(share / static_cast<double>(shape[1])));
  std::fill_n(values.elements.begin(), shape[1], BFloat16{0});
  return values;
}

SyntheticTensors::Values SyntheticTensors::make(std::string_view name,
                                                std::span<const int64_t> shape) const {
  const auto [layer, part] = parse_name(name);
  if (part == "model.embed_tokens.weight") return embedding(name, shape);
  if (part.ends_with("norm.weight")) {
    return rounded(std::vector(static_cast<size_t>(shape[0]), 1.0F));
  }
  if (part == "self_attn.v_proj.bias") {
    return rounded(std::vector(static_cast<size_t>(shape[0]), 0.0F));
  }
  if (part == "self_attn.q_proj.weight") return reader(name, shape, kContentScale);
  if (part == "self_attn.o_proj.weight" || part.ends_with("down_proj.weight")) {
    return writer(name, shape);
  }
  if (part.starts_with("self_attn.q_") || part.starts_with("self_attn.k_")) {
    const auto heads = synthetic_heads(config_, seed_, layer);
    if (part == "self_attn.q_proj.bias") return rounded(heads.q_bias);
    if (part == "self_attn.k_proj.bias") return rounded(heads.k_bias);
    return reader(name, shape, kContentScale, heads.heavy_key);
  }
  return reader(name, shape, /*scale=*/1);
}

}  // namespace millrace::model
