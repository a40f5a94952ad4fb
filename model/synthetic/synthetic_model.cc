// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic/synthetic_model.h"

#include <array>
#include <charconv>

#include "model/synthetic/synthetic_random.h"
#include "model/synthetic/synthetic_tensors.h"

namespace millrace::model {

namespace {

constexpr std::string_view kPrefix = "synthetic:";
constexpr uint64_t kDefaultSeed = 1;

constexpr int64_t kMaxPositions = 4 << 20;
// The values of Llama 3 stretched to 262,144 tokens (gradientai), and of Qwen2.5-1M.
constexpr double kLlamaRopeTheta = 283461213;
constexpr double kQwenRopeTheta = 1e7;

struct Shape {
  std::string_view name;
  int32_t num_layers;
  int32_t hidden_size;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t ffn_size;
  int32_t vocab_size;
  double rope_theta;
  ExpertsConfig experts = {};
};

const std::array<Shape, 6> kShapes = {{
    {"llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, kLlamaRopeTheta},
    {"llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256, kLlamaRopeTheta},
    {"qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, kQwenRopeTheta},
    {"tiny", 2, 256, 4, 2, 64, 512, 4096, kLlamaRopeTheta},
    {"qwen3-30b-a3b",
     48,
     2048,
     32,
     4,
     128,
     6144,
     151936,
     kQwenRopeTheta,
     {.num_experts = 128, .experts_per_token = 8, .ffn_size = 768, .weights_sum_to_one = true}},
    {"tiny-experts",
     2,
     256,
     4,
     2,
     64,
     512,
     4096,
     kQwenRopeTheta,
     {.num_experts = 16, .experts_per_token = 4, .ffn_size = 128, .weights_sum_to_one = true}},
}};

ModelConfig config_of(const Shape& shape, std::string_view model) {
  ModelConfig config;
  config.name = model;
  config.architecture = "Qwen2ForCausalLM";
  config.num_layers = shape.num_layers;
  config.hidden_size = shape.hidden_size;
  config.num_query_heads = shape.num_query_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  config.ffn_size = shape.ffn_size;
  config.vocab_size = shape.vocab_size;
  config.max_position_embeddings = kMaxPositions;
  config.rope_theta = shape.rope_theta;
  config.qkv_bias = true;
  config.experts = shape.experts;
  return config;
}

struct Parsed {
  ModelConfig config;
  uint64_t seed = kDefaultSeed;
};

Result<Parsed> parse(std::string_view model) {
  const std::string_view spec = model.substr(kPrefix.size());
  const std::string_view name = spec.substr(0, spec.find(':'));
  Parsed parsed;
  if (name.size() < spec.size()) {
    const std::string_view seed = spec.substr(name.size() + 1);
    const auto [end, problem] =
        std::from_chars(seed.data(), seed.data() + seed.size(), parsed.seed);
    if (problem != std::errc() || end != seed.data() + seed.size()) {
      return error(Errc::kInvalidArgument, "{}: the seed must be a number from 0 to 2^64 - 1",
                   model);
    }
  }
  for (const Shape& shape : kShapes) {
    if (shape.name != name) continue;
    parsed.config = config_of(shape, model);
    return parsed;
  }
  return error(Errc::kInvalidArgument,
               "{}: unknown synthetic model; expected llama-3-8b, llama-3-70b, qwen2.5-7b, "
               "qwen3-30b-a3b, tiny or tiny-experts",
               model);
}

}  // namespace

bool is_synthetic_model(std::string_view model) {
  return model.starts_with(kPrefix);
}

Result<ModelConfig> synthetic_config(std::string_view model) {
  MR_ASSIGN_OR_RETURN(auto parsed, parse(model));
  return parsed.config;
}

Result<std::unique_ptr<TensorSource>> synthetic_tensors(std::string_view model) {
  MR_ASSIGN_OR_RETURN(const auto parsed, parse(model));
  return std::unique_ptr<TensorSource>(
      std::make_unique<SyntheticTensors>(parsed.config, parsed.seed));
}

std::vector<int32_t> synthetic_prompt(const ModelConfig& config, int64_t num_tokens,
                                      uint64_t seed) {
  const uint64_t tokens = named_seed(seed, "prompt");
  std::vector<int32_t> prompt(static_cast<size_t>(num_tokens));
  for (size_t i = 1; i < prompt.size(); ++i) {
    prompt[i] =
        static_cast<int32_t>(mixed_bits(tokens, i) % static_cast<uint64_t>(config.vocab_size));
  }
  return prompt;
}

}  // namespace millrace::model
