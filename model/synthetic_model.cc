#include "model/synthetic_model.h"

#include <array>
#include <charconv>

#include "model/synthetic_random.h"
#include "model/synthetic_tensors.h"

namespace millrace::model {

namespace {

constexpr std::string_view kPrefix = "synthetic:";
constexpr uint64_t kDefaultSeed = 1;

constexpr int64_t kMaxPositions = 4 << 20;
// Of Llama 3 stretched to 262,144 tokens (gradientai), and of Qwen2.5-1M.
constexpr double kLlamaRopeTheta = 283461213;
constexpr double kQwenRopeTheta = 1e7;

ModelConfig shape(const char* name, int32_t num_layers, int32_t hidden_size) {
  ModelConfig config;
  config.name = name;
  config.architecture = "Qwen2ForCausalLM";
  config.num_layers = num_layers;
  config.hidden_size = hidden_size;
  config.max_position_embeddings = kMaxPositions;
  config.rope_theta = kLlamaRopeTheta;
  config.qkv_bias = true;
  return config;
}

ModelConfig llama_3_8b() {
  ModelConfig config = shape("llama-3-8b", /*num_layers=*/32, /*hidden_size=*/4096);
  config.num_query_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.ffn_size = 14336;
  config.vocab_size = 128256;
  return config;
}

ModelConfig llama_3_70b() {
  ModelConfig config = shape("llama-3-70b", /*num_layers=*/80, /*hidden_size=*/8192);
  config.num_query_heads = 64;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.ffn_size = 28672;
  config.vocab_size = 128256;
  return config;
}

ModelConfig qwen_2_5_7b() {
  ModelConfig config = shape("qwen2.5-7b", /*num_layers=*/28, /*hidden_size=*/3584);
  config.num_query_heads = 28;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.ffn_size = 18944;
  config.vocab_size = 152064;
  config.rope_theta = kQwenRopeTheta;
  return config;
}

ModelConfig tiny() {
  ModelConfig config = shape("tiny", /*num_layers=*/2, /*hidden_size=*/256);
  config.num_query_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.ffn_size = 512;
  config.vocab_size = 4096;
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
      return error(Errc::kInvalidArgument, "{}: the seed is no number from 0 to 2^64 - 1", model);
    }
  }
  for (auto& config : {llama_3_8b(), llama_3_70b(), qwen_2_5_7b(), tiny()}) {
    if (config.name != name) continue;
    parsed.config = config;
    parsed.config.name = model;
    return parsed;
  }
  return error(Errc::kInvalidArgument,
               "{}: no such synthetic model; there are llama-3-8b, llama-3-70b, qwen2.5-7b, tiny",
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
