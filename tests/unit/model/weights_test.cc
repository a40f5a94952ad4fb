// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/model/memory_device.h"

namespace millrace::model {
namespace {

using test::CheckpointTensor;
using test::CheckpointTensors;
using test::MemoryDevice;
using test::TempDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kF32 = DType::kFloat32;
constexpr auto kBF16 = DType::kBFloat16;
constexpr auto kF16 = DType::kFloat16;

// Elements of a matrix as floats.
float element(const kernels::ConstMatrix& matrix, int64_t row, int64_t col) {
  const int64_t i = row * matrix.row_stride + col;
  switch (matrix.dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(matrix.data)[i];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(matrix.data)[i]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(matrix.data)[i]);
  }
  return 0;
}

// Reassembles a full tensor from the parts that ranks hold.
class Assembly {
 public:
  explicit Assembly(const CheckpointTensor& expected)
      : expected_(&expected),
        cols_(expected.shape.size() < 2 ? 1 : expected.shape[1]),
        values_(expected.values.size(), std::numeric_limits<float>::quiet_NaN()) {}

  // Rows [from, from + count) of `part` are rows `first`.. and columns `first_col`.. of the whole.
  void put(const kernels::ConstMatrix& part, int64_t from, int64_t count, int64_t first,
           int64_t first_col = 0) {
    ASSERT_LE(from + count, part.rows);
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t col = 0; col < part.cols; ++col) {
        const auto at = static_cast<size_t>((first + row) * cols_ + first_col + col);
        values_.at(at) = element(part, from + row, col);
      }
    }
  }
  // NaN marks elements that no rank holds, and equals nothing.
  void expect_whole(const std::string& name) const {
    EXPECT_EQ(values_, expected_->values) << name;
  }

 private:
  const CheckpointTensor* expected_;
  int64_t cols_;
  std::vector<float> values_;
};

kernels::ConstMatrix column(const float* values, int64_t count) {
  return kernels::dense_matrix(static_cast<const void*>(values), DType::kFloat32, count, 1);
}

// Puts the experts in `part` back into the tensors of `layer`. `names`: those of gate, up and down,
// with "{}" for the expert's number.
void put_experts(const ExpertWeights& part, int64_t ffn, int32_t rank,
                 const std::array<std::string, 3>& names,
                 const std::function<Assembly&(const std::string&)>& of) {
  const int64_t hidden = part.gate_up.cols;
  ASSERT_EQ(part.gate_up.rows, part.num_experts * 2 * ffn);
  ASSERT_EQ(part.down.rows, part.num_experts * hidden);
  for (int32_t e = 0; e < part.num_experts; ++e) {
    const auto name = [&](size_t i) { return fmt::format(fmt::runtime(names[i]), e); };
    of(name(0)).put(part.gate_up, e * 2 * ffn, ffn, rank * ffn);
    of(name(1)).put(part.gate_up, e * 2 * ffn + ffn, ffn, rank * ffn);
    of(name(2)).put(part.down, e * hidden, hidden, 0, rank * ffn);
  }
}

// Family, file type, compute type, tensor-parallel size, device threads (0: as a GPU).
using Combination = std::tuple<const char*, DType, DType, int32_t, int>;

class LoadedWeights : public testing::TestWithParam<Combination> {};

TEST_P(LoadedWeights, SlicesOfAllRanksAreTheWholeMatricesBitByBit) {
  const auto& [family, file_dtype, compute_dtype, size, num_threads] = GetParam();
  auto config = test::tiny_model_config(family);
  const auto tensors = test::random_tensors(config, 7);
  TempDirectory directory;
  test::write_checkpoint(config, tensors, file_dtype, directory.path(), 2);

  std::map<std::string, Assembly> whole;
  for (const auto& [name, tensor] : tensors) whole.emplace(name, tensor);
  for (int32_t rank = 0; rank < size; ++rank) {
    MemoryDevice device(num_threads);
    const auto loaded = load_model_weights(directory.path(), {rank, size}, compute_dtype, device);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    const auto& weights = **loaded;
    const auto& shard = weights.shard;
    EXPECT_EQ(weights.embedding.dtype, file_dtype);
    whole.at("model.embed_tokens.weight").put(weights.embedding, 0, config.vocab_size, 0);
    EXPECT_EQ(weights.lm_head.dtype, compute_dtype);
    whole.at("lm_head.weight")
        .put(weights.lm_head, 0, shard.vocab_end - shard.vocab_begin, shard.vocab_begin);
    whole.at("model.norm.weight").put(column(weights.final_norm, config.hidden_size), 0, 64, 0);

    const int64_t d = config.head_dim;
    const int64_t q_rows = shard.num_query_heads * d, kv_rows = shard.num_kv_heads * d;
    const int64_t q_first = shard.first_query_head * d, kv_first = shard.first_kv_head * d;
    const int64_t ffn = shard.ffn_size;
    ASSERT_EQ(weights.layers.size(), static_cast<size_t>(config.num_layers));
    for (int32_t i = 0; i < config.num_layers; ++i) {
      const auto& layer = weights.layers[static_cast<size_t>(i)];
      const auto of = [&](const std::string& name) -> Assembly& {
        return whole.at("model.layers." + std::to_string(i) + "." + name);
      };
      EXPECT_EQ(layer.qkv.dtype, compute_dtype);
      EXPECT_EQ(layer.qkv.rows, q_rows + 2 * kv_rows);
      // Three tensors, or one with all three below each other.
      const bool fused = config.fused_qkv;
      const std::string qkv = "self_attn.qkv_proj.weight";
      const int64_t all_q = fused ? int64_t{config.num_query_heads} * d : 0;
      const int64_t all_kv = fused ? int64_t{config.num_kv_heads} * d : 0;
      of(fused ? qkv : "self_attn.q_proj.weight").put(layer.qkv, 0, q_rows, q_first);
      of(fused ? qkv : "self_attn.k_proj.weight").put(layer.qkv, q_rows, kv_rows, all_q + kv_first);
      of(fused ? qkv : "self_attn.v_proj.weight")
          .put(layer.qkv, q_rows + kv_rows, kv_rows, all_q + all_kv + kv_first);
      of("self_attn.o_proj.weight").put(layer.o, 0, config.hidden_size, 0, q_first);
      ASSERT_EQ(layer.experts.num_experts > 0, config.has_experts(i));
      if (config.has_experts(i)) {
        const bool mixtral = config.experts.names == ExpertsConfig::Names::kMixtral;
        const std::string mixture = mixtral ? "block_sparse_moe." : "mlp.";
        const std::array<std::string, 3> names =
            mixtral ? std::array<std::string, 3>{"w1", "w3", "w2"}
                    : std::array<std::string, 3>{"gate_proj", "up_proj", "down_proj"};
        const auto named = [&](const std::string& expert) {
          auto full = names;
          for (auto& name : full) name = mixture + expert + name + ".weight";
          return full;
        };
        const int64_t hidden = config.hidden_size;
        const auto router = [hidden](const ExpertWeights& experts) {
          return kernels::dense_matrix(static_cast<const void*>(experts.router), kF32,
                                       experts.num_experts, hidden);
        };
        of(mixture + "gate.weight").put(router(layer.experts), 0, 4, 0);
        put_experts(layer.experts, shard.expert_ffn_size, rank, named("experts.{}."), of);
        ASSERT_EQ(layer.shared_expert.num_experts > 0, config.experts.shared_ffn_size > 0);
        if (layer.shared_expert.num_experts > 0) {
          of(mixture + "shared_expert_gate.weight").put(router(layer.shared_expert), 0, 1, 0);
          put_experts(layer.shared_expert, shard.shared_ffn_size, rank, named("shared_expert."),
                      of);
        }
      } else {
        EXPECT_EQ(layer.gate_up.rows, 2 * ffn);
        const std::string gate_up = "mlp.gate_up_proj.weight";
        of(fused ? gate_up : "mlp.gate_proj.weight").put(layer.gate_up, 0, ffn, rank * ffn);
        of(fused ? gate_up : "mlp.up_proj.weight")
            .put(layer.gate_up, ffn, ffn, (fused ? config.ffn_size : 0) + rank * ffn);
        of("mlp.down_proj.weight").put(layer.down, 0, config.hidden_size, 0, rank * ffn);
      }
      of("input_layernorm.weight").put(column(layer.attention_norm, 64), 0, 64, 0);
      of("post_attention_layernorm.weight").put(column(layer.mlp_norm, 64), 0, 64, 0);
      ASSERT_EQ(layer.q_norm != nullptr, config.qk_norm);
      if (config.qk_norm) {
        of("self_attn.q_norm.weight").put(column(layer.q_norm, d), 0, d, 0);
        of("self_attn.k_norm.weight").put(column(layer.k_norm, d), 0, d, 0);
      }
      ASSERT_EQ(layer.qkv_bias != nullptr, config.qkv_bias);
      if (!config.qkv_bias) continue;
      const auto bias = column(layer.qkv_bias, q_rows + 2 * kv_rows);
      of("self_attn.q_proj.bias").put(bias, 0, q_rows, q_first);
      of("self_attn.k_proj.bias").put(bias, q_rows, kv_rows, kv_first);
      of("self_attn.v_proj.bias").put(bias, q_rows + kv_rows, kv_rows, kv_first);
    }
  }
  for (const auto& [name, assembly] : whole) assembly.expect_whole(name);
}

// 8 query heads, 4 kv heads: at 8 ranks every kv head is on two.
INSTANTIATE_TEST_SUITE_P(Model, LoadedWeights,
                         testing::Values(Combination{"LlamaForCausalLM", kF32, kF32, 1, 1},
                                         Combination{"LlamaForCausalLM", kBF16, kF32, 1, 0},
                                         Combination{"LlamaForCausalLM", kF16, kF32, 2, 1},
                                         Combination{"LlamaForCausalLM", kF32, kBF16, 2, 0},
                                         Combination{"MistralForCausalLM", kBF16, kBF16, 2, 1},
                                         Combination{"MistralForCausalLM", kF16, kBF16, 4, 1},
                                         Combination{"LlamaForCausalLM", kBF16, kBF16, 8, 0},
                                         Combination{"Qwen2ForCausalLM", kBF16, kF32, 2, 1},
                                         Combination{"Qwen2ForCausalLM", kF32, kF32, 4, 1},
                                         Combination{"Qwen2ForCausalLM", kF16, kBF16, 8, 1},
                                         Combination{"Qwen3ForCausalLM", kBF16, kBF16, 2, 1},
                                         Combination{"Qwen3ForCausalLM", kF32, kBF16, 8, 0},
                                         Combination{"Phi3ForCausalLM", kBF16, kF32, 1, 1},
                                         Combination{"Phi3ForCausalLM", kBF16, kBF16, 4, 0},
                                         Combination{"MixtralForCausalLM", kBF16, kF32, 2, 1},
                                         Combination{"Qwen3MoeForCausalLM", kBF16, kBF16, 4, 1},
                                         Combination{"Qwen2MoeForCausalLM", kF32, kBF16, 2, 0},
                                         Combination{"LlamaForCausalLM", kF16, kF16, 2, 0},
                                         Combination{"Qwen2ForCausalLM", kBF16, kF16, 1, 1}));

// Nothing of a model is in its files once it is loaded: neither what the device could read there nor
// what is converted.
TEST(ModelWeights, StayWhenTheirFilesAreWrittenOverAndCutShort) {
  const auto config = test::tiny_model_config();
  const auto tensors = test::random_tensors(config, 3);
  for (const DType compute_dtype : {kBF16, kF32}) {
    TempDirectory directory;
    test::write_checkpoint(config, tensors, kBF16, directory.path(), 1);
    const auto path = directory.file("model.safetensors");
    MemoryDevice device(2);
    const auto loaded = load_model_weights(directory.path(), {0, 1}, compute_dtype, device);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    const auto size = std::filesystem::file_size(path);
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << std::string(size, '\0');
    std::filesystem::resize_file(path, 1000);
    Assembly embedding(tensors.at("model.embed_tokens.weight")), head(tensors.at("lm_head.weight"));
    embedding.put((*loaded)->embedding, 0, config.vocab_size, 0);
    embedding.expect_whole("model.embed_tokens.weight");
    head.put((*loaded)->lm_head, 0, config.vocab_size, 0);
    head.expect_whole("lm_head.weight");
  }
}

TEST(ModelWeights, HaveAVocabularyThatTheFileDoesNotAlign) {
  auto config = test::tiny_model_config();
  const auto tensors = test::random_tensors(config, 3);
  TempDirectory directory;
  test::write_checkpoint(config, tensors, kF32, directory.path(), 1);
  // One more space behind the header moves all data to odd addresses.
  auto bytes = test::safetensors_bytes(tensors, kF32);
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{static_cast<uint8_t>(bytes[i])} << 8 * i;
  bytes.insert(8 + length, 1, ' ');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((length + 1) >> 8 * i);
  directory.write("model.safetensors", bytes);

  MemoryDevice device(1);
  const auto loaded = load_model_weights(directory.path(), {0, 1}, kF32, device);
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  Assembly embedding(tensors.at("model.embed_tokens.weight"));
  embedding.put((*loaded)->embedding, 0, config.vocab_size, 0);
  embedding.expect_whole("model.embed_tokens.weight");
}

TEST(ModelWeights, TiedHeadIsTheRanksSliceOfTheEmbedding) {
  auto config = test::tiny_model_config();
  config.tied_embeddings = true;
  const auto tensors = test::random_tensors(config, 5);
  TempDirectory directory;
  test::write_checkpoint(config, tensors, kBF16, directory.path(), 1);
  const auto& table = tensors.at("model.embed_tokens.weight");
  for (const DType compute_dtype : {kBF16, kF32}) {
    for (const int num_threads : {0, 1}) {
      Assembly head(table);
      for (int32_t rank = 0; rank < 2; ++rank) {
        MemoryDevice device(num_threads);
        const auto loaded = load_model_weights(directory.path(), {rank, 2}, compute_dtype, device);
        ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
        const auto& weights = **loaded;
        EXPECT_EQ(weights.lm_head.dtype, compute_dtype);
        head.put(weights.lm_head, 0, weights.lm_head.rows, weights.shard.vocab_begin);
      }
      head.expect_whole("lm_head");
    }
  }
}

TEST(ModelWeights, ATiedMatrixMayHaveTheNameOfTheHead) {
  auto config = test::tiny_model_config();
  config.tied_embeddings = true;
  auto tensors = test::random_tensors(config, 5);
  const auto table = tensors.at("model.embed_tokens.weight");
  tensors.erase("model.embed_tokens.weight");
  tensors["lm_head.weight"] = table;
  TempDirectory directory;
  test::write_checkpoint(config, tensors, kBF16, directory.path(), 1);
  const auto stored = stored_dtype(directory.path());
  ASSERT_TRUE(stored.ok()) << stored.error().to_string();
  EXPECT_EQ(*stored, kBF16);
  MemoryDevice device(1);
  const auto loaded = load_model_weights(directory.path(), {0, 1}, kBF16, device);
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  Assembly embedding(table), head(table);
  embedding.put((*loaded)->embedding, 0, config.vocab_size, 0);
  embedding.expect_whole("embedding");
  head.put((*loaded)->lm_head, 0, config.vocab_size, 0);
  head.expect_whole("lm_head");
  EXPECT_THAT((*loaded)->warnings, IsEmpty());

  // Without the tie it is a missing tensor.
  config.tied_embeddings = false;
  test::write_checkpoint(config, tensors, kBF16, directory.path(), 1);
  const auto missing = load_model_weights(directory.path(), {0, 1}, kBF16, device);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr("model.embed_tokens.weight"));
}

// As tie_weights in Transformers: two different matrices are not tied.
TEST(ModelWeights, AreTiedOnlyIfTheirMatricesAreEqual) {
  auto config = test::tiny_model_config();
  const auto tensors = test::random_tensors(config, 5);  // with a head of its own
  config.tied_embeddings = true;
  TempDirectory directory;
  test::write_checkpoint(config, tensors, kBF16, directory.path(), 1);
  MemoryDevice device(1);
  const auto untied = load_model_weights(directory.path(), {0, 1}, kBF16, device);
  ASSERT_TRUE(untied.ok()) << untied.error().to_string();
  Assembly head(tensors.at("lm_head.weight"));
  head.put((*untied)->lm_head, 0, config.vocab_size, 0);
  head.expect_whole("lm_head.weight");
  EXPECT_THAT((*untied)->warnings, ElementsAre(HasSubstr("tie_word_embeddings")));

  auto equal = tensors;
  equal["lm_head.weight"] = equal["model.embed_tokens.weight"];
  test::write_checkpoint(config, equal, kBF16, directory.path(), 1);
  const auto tied = load_model_weights(directory.path(), {0, 1}, kBF16, device);
  ASSERT_TRUE(tied.ok()) << tied.error().to_string();
  EXPECT_TRUE((*tied)->config.tied_embeddings);
  EXPECT_THAT((*tied)->warnings, IsEmpty());
}

TEST(ModelWeights, NameTensorsThatAreNotRead) {
  auto config = test::tiny_model_config();
  auto tensors = test::random_tensors(config, 5);
  for (const char* layer : {"0", "1"}) {
    const auto attention = fmt::format("model.layers.{}.self_attn.", layer);
    tensors[attention + "q_proj.bias"] = {{128}, std::vector<float>(128, 1)};
    tensors[attention + "k_scale"] = {{1}, {1}};  // with --kv-cache-dtype fp8
  }
  tensors["vision_tower.patches"] = {{1}, {1}};
  config.eos_token_ids = {5000};
  TempDirectory directory;
  test::write_checkpoint(config, tensors, kBF16, directory.path(), 1);
  MemoryDevice device(1);
  const auto loaded = load_model_weights(directory.path(), {0, 1}, kBF16, device);
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_THAT(
      (*loaded)->warnings,
      ElementsAre(HasSubstr("eos_token_id = 5000"),
                  "tensors that are not read: \"model.layers.*.self_attn.q_proj.bias\" (2), "
                  "\"vision_tower.patches\" (1)"));
}

TEST(ModelWeights, RefuseATensorThatBelongsToAWeightAndIsNotRead) {
  const auto config = test::tiny_model_config();
  for (const std::string part : {"_zero_point", "_scale_2", "_g_idx"}) {
    auto tensors = test::random_tensors(config, 5);
    const auto name = "model.layers.1.mlp.up_proj.weight" + part;
    tensors[name] = {{1}, {1}};
    TempDirectory directory;
    test::write_checkpoint(config, tensors, kBF16, directory.path(), 1);
    MemoryDevice device(1);
    const auto loaded = load_model_weights(directory.path(), {0, 1}, kBF16, device);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, Errc::kUnsupported);
    EXPECT_THAT(loaded.error().message, HasSubstr(name));
  }
}

TEST(ModelWeights, ARankBeyondASmallVocabularyHoldsNoRowsOfIt) {
  auto config = test::tiny_model_config();
  config.vocab_size = 5;
  TempDirectory directory;
  test::write_random_checkpoint(config, kBF16, 5, directory.path());
  for (const DType compute_dtype : {kBF16, kF32}) {
    MemoryDevice device(0);
    const auto loaded = load_model_weights(directory.path(), {3, 4}, compute_dtype, device);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    EXPECT_EQ((*loaded)->embedding.rows, 5);
    EXPECT_EQ((*loaded)->lm_head.rows, 0);
  }
}

class ModelWeightsOf : public testing::TestWithParam<const char*> {
 protected:
  static ModelConfig one_layer() {
    auto config = test::tiny_model_config(GetParam());
    config.num_layers = 1;
    config.experts.dense_layers.clear();
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Families, ModelWeightsOf,
                         testing::Values("Qwen2ForCausalLM", "Qwen2MoeForCausalLM",
                                         "MixtralForCausalLM"));

TEST_P(ModelWeightsOf, NamesWhicheverTensorIsMissing) {
  const auto config = one_layer();
  const auto tensors = test::random_tensors(config, 5);
  for (const auto& [name, tensor] : tensors) {
    auto incomplete = tensors;
    incomplete.erase(name);
    TempDirectory directory;
    test::write_checkpoint(config, incomplete, kBF16, directory.path(), 1);
    MemoryDevice device(1);
    const auto loaded = load_model_weights(directory.path(), {0, 1}, kBF16, device);
    ASSERT_FALSE(loaded.ok()) << name;
    EXPECT_EQ(loaded.error().code, Errc::kNotFound);
    EXPECT_THAT(loaded.error().message, HasSubstr("\"" + name + "\""));
  }
}

TEST_P(ModelWeightsOf, NamesWhicheverTensorHasAnotherShapeThanTheConfig) {
  const auto config = one_layer();
  const auto tensors = test::random_tensors(config, 5);
  for (const auto& [name, tensor] : tensors) {
    auto changed = tensors;
    auto& shape = changed.at(name).shape;
    shape.insert(shape.begin(), 1);  // the same bytes
    TempDirectory directory;
    test::write_checkpoint(config, changed, kBF16, directory.path(), 1);
    MemoryDevice device(1);
    const auto loaded = load_model_weights(directory.path(), {0, 1}, kBF16, device);
    ASSERT_FALSE(loaded.ok()) << name;
    EXPECT_EQ(loaded.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(loaded.error().message,
                AllOf(HasSubstr("\"" + name + "\""), HasSubstr("shape [1, ")));
  }
}

// Refused before they are read, with the file, the field and what the rank would have.
TEST(ModelWeights, RefusesPartsOfExpertsThatTheDeviceDoesNotMultiply) {
  auto config = test::tiny_model_config("Qwen2MoeForCausalLM");
  const auto refusal = [&](Arithmetic arithmetic, int32_t size) {
    TempDirectory directory;
    directory.write("config.json", test::config_json(config));
    MemoryDevice device(0);
    device.set_width_step(8);
    const auto loaded = load_model_weights(directory.path(), {0, size}, arithmetic, device);
    EXPECT_FALSE(loaded.ok());
    return loaded.ok() ? Error(Errc::kInternal, "was loaded") : loaded.error();
  };
  config.experts.ffn_size = 24;
  auto error = refusal(kBF16, 2);
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("/config.json: moe_intermediate_size = 24, 12 on each of 2 "
                                       "tensor-parallel ranks: memory does not compute it; "
                                       "supported: experts of 16 bits of multiples of 8"));
  error = refusal({kBF16, Quantization::kFloat8}, 1);
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message,
              AllOf(HasSubstr("moe_intermediate_size = 24: memory"), HasSubstr("multiples of 16")));
  config.experts.ffn_size = 32;
  config.experts.shared_ffn_size = 40;
  error = refusal(kBF16, 2);
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message,
              HasSubstr("/config.json: shared_expert_intermediate_size = 40, 20 on"));
}

// Only one of the ranks adds it to the sum.
TEST(ModelWeights, TheFirstRankHasTheOutputBias) {
  const auto config = test::tiny_model_config();
  auto tensors = test::random_tensors(config, 5);
  tensors["model.layers.0.self_attn.o_proj.bias"] = {.shape = {64},
                                                     .values = std::vector<float>(64, 0.0f)};
  tensors["model.layers.1.self_attn.o_proj.bias"] = {.shape = {64},
                                                     .values = std::vector<float>(64, 0.5f)};
  TempDirectory directory;
  test::write_checkpoint(config, tensors, kF32, directory.path(), 1);
  for (const int rank : {0, 1}) {
    MemoryDevice device(1);
    const auto loaded = load_model_weights(directory.path(), {rank, 2}, kF32, device);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    EXPECT_EQ((*loaded)->layers[0].o_bias, nullptr);  // of zeros
    ASSERT_EQ((*loaded)->layers[1].o_bias != nullptr, rank == 0);
    if (rank == 0) {
      EXPECT_EQ((*loaded)->layers[1].o_bias[63], 0.5f);
    }
  }
}

// A bias of zeros counts as none.
TEST(ModelWeights, ProductsOf8BitsHaveTheOutputBiasToo) {
  const auto config = test::tiny_model_config();
  for (const float value : {0.0f, 0.5f}) {
    auto tensors = test::random_tensors(config, 5);
    tensors["model.layers.0.self_attn.o_proj.bias"] = {.shape = {64},
                                                       .values = std::vector<float>(64, value)};
    TempDirectory directory;
    test::write_checkpoint(config, tensors, kF32, directory.path(), 1);
    MemoryDevice device(1);
    const auto loaded =
        load_model_weights(directory.path(), {0, 1}, {kBF16, Quantization::kFloat8}, device);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    EXPECT_EQ((*loaded)->layers[0].o_bias != nullptr, value != 0);
  }
}

TEST(ModelWeights, RefusesWhatFloat16DoesNotHoldUnlessAnotherDTypeIsComputedIn) {
  const auto config = test::tiny_model_config();
  for (const float value : {65504.0f, 65536.0f, -1e30f}) {
    auto tensors = test::random_tensors(config, 5);
    tensors["model.layers.1.mlp.down_proj.weight"].values[7] = value;
    TempDirectory directory;
    test::write_checkpoint(config, tensors, kF32, directory.path(), 1);
    for (const DType compute_dtype : {kF16, kBF16}) {
      MemoryDevice device(1);
      const auto loaded = load_model_weights(directory.path(), {0, 1}, compute_dtype, device);
      ASSERT_EQ(loaded.ok(), compute_dtype == kBF16 || value == 65504.0f) << value;
      if (loaded.ok()) continue;
      EXPECT_EQ(loaded.error().code, Errc::kUnsupported);
      EXPECT_THAT(loaded.error().message, HasSubstr("65,504"));
    }
  }
}

TEST(ModelWeights, TellsWhatTheMatricesAreStoredIn) {
  for (const DType stored : {kF32, kBF16, kF16}) {
    TempDirectory directory;
    test::write_random_checkpoint(test::tiny_model_config(), stored, 3, directory.path());
    const auto found = stored_dtype(directory.path());
    ASSERT_TRUE(found.ok()) << found.error().to_string();
    EXPECT_EQ(*found, stored);
  }
  EXPECT_EQ(*stored_dtype("synthetic:tiny"), kBF16);
  EXPECT_FALSE(stored_dtype("/nowhere").ok());
}

TEST(ModelWeights, PassesOnThatTheDeviceIsFullAndFreesWhatItHad) {
  TempDirectory directory;
  test::write_random_checkpoint(test::tiny_model_config(), kF32, 3, directory.path());
  MemoryDevice device(0, 64 << 10);
  const auto loaded = load_model_weights(directory.path(), {0, 1}, kF32, device);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, Errc::kExhausted);
  EXPECT_EQ(device.allocated_bytes(), 0);
}

TEST(ModelWeights, HoldTheRotaryFrequencies) {
  TempDirectory directory;
  test::write_random_checkpoint(test::tiny_model_config(), kF32, 3, directory.path());
  MemoryDevice device(0);
  const auto loaded = load_model_weights(directory.path(), {0, 1}, kF32, device);
  ASSERT_TRUE(loaded.ok());
  for (int i = 0; i < 8; ++i) {
    EXPECT_FLOAT_EQ((*loaded)->inv_freq[i], static_cast<float>(std::pow(10000.0, -i / 8.0)));
  }
}

}  // namespace
}  // namespace millrace::model
