// SPDX-License-Identifier: Apache-2.0
// Weights in 8-bit floats: their elements, the layouts of their scales, and what is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "common/system/mapped_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/element_conversion.h"
#include "model/fingerprint.h"
#include "model/weights.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/model/float8_checkpoint.h"
#include "tests/unit/model/memory_device.h"
#include "tests/unit/model/raw_tensors.h"

namespace millrace::model {
namespace {

using test::e4m3;
using test::element;
using test::float8_checkpoint;
using test::float8_config;
using test::kBlockLayout;
using test::kFbgemmLayout;
using test::kRowLayout;
using test::kTensorLayout;
using test::Layout;
using test::MemoryDevice;
using test::RawTensor;
using test::RawTensors;
using test::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kF32 = DType::kFloat32;
constexpr auto kBF16 = DType::kBFloat16;
constexpr auto kF16 = DType::kFloat16;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Float8, EveryElementIsMultipliedInFloat32AndRoundedOnce) {
  std::vector<std::byte> all;
  for (int bits = 0; bits < 256; ++bits) all.push_back(static_cast<std::byte>(bits));
  for (const float scale : {1.0F, 0.0123F}) {
    std::vector<float> floats(256);
    std::vector<BFloat16> bfloats(256);
    std::vector<Float16> halves(256);
    convert_float8(all.data(), 256, scale, floats.data(), kF32);
    convert_float8(all.data(), 256, scale, bfloats.data(), kBF16);
    convert_float8(all.data(), 256, scale, halves.data(), kF16);
    for (size_t bits = 0; bits < 256; ++bits) {
      const float expected = e4m3(static_cast<uint8_t>(bits)) * scale;
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(floats[bits]) && std::isnan(to_float(bfloats[bits])) &&
                    std::isnan(to_float(halves[bits])))
            << bits;
        continue;
      }
      EXPECT_EQ(floats[bits], expected) << bits;
      EXPECT_EQ(bfloats[bits].bits, to_bfloat16(expected).bits) << bits;
      EXPECT_EQ(halves[bits].bits, to_float16(expected).bits) << bits;
    }
  }
}

// Layout, family, compute type, tensor-parallel size, device threads (0: as a GPU).
using Combination = std::tuple<Layout, const char*, DType, int32_t, int>;

class Float8Weights : public testing::TestWithParam<Combination> {};

TEST_P(Float8Weights, SlicesOfEveryRankAreElementsTimesScalesBitByBit) {
  const auto& [layout, family, dtype, size, num_threads] = GetParam();
  const auto config = float8_config(family);
  const auto made = float8_checkpoint(config, layout);
  TempDirectory directory;
  write(directory, config, made.tensors, layout.quantization);
  const bool fused = config.fused_qkv;
  for (int32_t rank = 0; rank < size; ++rank) {
    MemoryDevice device(num_threads);
    const auto loaded = load_model_weights(directory.path(), {rank, size}, dtype, device, 2);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    const auto& weights = **loaded;
    const auto& shard = weights.shard;
    for (int32_t i = 0; i < config.num_layers; ++i) {
      const auto& layer = weights.layers[static_cast<size_t>(i)];
      // Rows [from, from + count) of `part` are those from (first_row, first_col) on.
      const auto expect = [&](const kernels::ConstMatrix& part, int64_t from, int64_t count,
                              const std::string& name, int64_t first_row, int64_t first_col = 0) {
        const auto full = "model.layers." + std::to_string(i) + "." + name;
        const auto& values = made.values.at(full);
        const int64_t cols = made.tensors.at(full).shape[1];
        int64_t num_wrong = 0;
        for (int64_t row = 0; row < count; ++row) {
          for (int64_t col = 0; col < part.cols; ++col) {
            const auto at = static_cast<size_t>((first_row + row) * cols + first_col + col);
            num_wrong += element(part, from + row, col) != rounded_to(dtype, values.at(at));
          }
        }
        EXPECT_EQ(num_wrong, 0) << full << " on rank " << rank;
      };
      const int64_t d = config.head_dim, all_q = int64_t{config.num_query_heads} * d;
      const int64_t all_kv = int64_t{config.num_kv_heads} * d;
      const int64_t q = shard.num_query_heads * d, kv = shard.num_kv_heads * d;
      const int64_t q_first = shard.first_query_head * d, kv_first = shard.first_kv_head * d;
      const std::string qkv = "self_attn.qkv_proj.weight", both = "mlp.gate_up_proj.weight";
      expect(layer.qkv, 0, q, fused ? qkv : "self_attn.q_proj.weight", q_first);
      expect(layer.qkv, q, kv, fused ? qkv : "self_attn.k_proj.weight",
             (fused ? all_q : 0) + kv_first);
      expect(layer.qkv, q + kv, kv, fused ? qkv : "self_attn.v_proj.weight",
             (fused ? all_q + all_kv : 0) + kv_first);
      expect(layer.o, 0, config.hidden_size, "self_attn.o_proj.weight", 0, q_first);
      const int64_t ffn = shard.ffn_size;
      expect(layer.gate_up, 0, ffn, fused ? both : "mlp.gate_proj.weight", rank * ffn);
      expect(layer.gate_up, ffn, ffn, fused ? both : "mlp.up_proj.weight",
             (fused ? config.ffn_size : 0) + rank * ffn);
      expect(layer.down, 0, config.hidden_size, "mlp.down_proj.weight", 0, rank * ffn);
    }
  }
}

constexpr const char* kLlama = "LlamaForCausalLM";
constexpr const char* kPhi3 = "Phi3ForCausalLM";
INSTANTIATE_TEST_SUITE_P(Model, Float8Weights,
                         testing::Values(Combination{kTensorLayout, kLlama, kF32, 1, 1},
                                         Combination{kTensorLayout, kPhi3, kBF16, 2, 0},
                                         Combination{kRowLayout, kLlama, kBF16, 2, 1},
                                         Combination{kRowLayout, kPhi3, kF16, 4, 0},
                                         Combination{kFbgemmLayout, "Qwen2ForCausalLM", kF32, 2, 1},
                                         Combination{kBlockLayout, kLlama, kF32, 1, 0},
                                         Combination{kBlockLayout, kLlama, kBF16, 2, 1},
                                         Combination{kBlockLayout, kPhi3, kF32, 2, 1},
                                         Combination{kBlockLayout, "Qwen3ForCausalLM", kBF16, 8,
                                                     0}));

// In the compute type. Experts lie one below the other, each as its gate and then its up; of down,
// a rank has columns.
TEST(Float8Weights, ExpertsAreElementsTimesScalesBitByBit) {
  const auto config = test::float8_mixture_config("Qwen3MoeForCausalLM");
  const auto made = float8_checkpoint(config, kBlockLayout);
  TempDirectory directory;
  write(directory, config, made.tensors, kBlockLayout.quantization);
  for (int32_t rank = 0; rank < 2; ++rank) {
    MemoryDevice device(0);
    const auto loaded = load_model_weights(directory.path(), {rank, 2}, kBF16, device, 2);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    const auto& experts = (*loaded)->layers[1].experts;
    EXPECT_FALSE(experts.quantized());
    const int64_t width = (*loaded)->shard.expert_ffn_size, hidden = config.hidden_size;
    for (int64_t number = 0; number < experts.num_experts; ++number) {
      const auto expect = [&](const kernels::ConstMatrix& part, int64_t from, int64_t count,
                              const std::string& name, int64_t first_row, int64_t first_col) {
        const auto full = fmt::format("model.layers.1.mlp.experts.{}.{}.weight", number, name);
        const auto& values = made.values.at(full);
        const int64_t cols = made.tensors.at(full).shape[1];
        int64_t num_wrong = 0;
        for (int64_t row = 0; row < count; ++row) {
          for (int64_t col = 0; col < part.cols; ++col) {
            const auto at = static_cast<size_t>((first_row + row) * cols + first_col + col);
            num_wrong += element(part, from + row, col) != rounded_to(kBF16, values.at(at));
          }
        }
        EXPECT_EQ(num_wrong, 0) << full << " on rank " << rank;
      };
      const int64_t first = rank * width;
      expect(experts.gate_up, number * 2 * width, width, "gate_proj", first, 0);
      expect(experts.gate_up, (number * 2 + 1) * width, width, "up_proj", first, 0);
      expect(experts.down, number * hidden, hidden, "down_proj", 0, first);
    }
  }
}

TEST(Float8Weights, AnEmbeddingOf8BitsAlsoServesAsTiedHead) {
  auto config = float8_config(kLlama);
  config.tied_embeddings = true;
  auto made = float8_checkpoint(config, kRowLayout);
  const std::string name = "model.embed_tokens.weight";
  std::string bytes(static_cast<size_t>(config.vocab_size * config.hidden_size), '\x38');  // 1
  std::vector<float> scales;
  for (int row = 0; row < config.vocab_size; ++row) scales.push_back(1 + static_cast<float>(row));
  made.tensors[name] = {"F8_E4M3", {config.vocab_size, config.hidden_size}, bytes};
  made.tensors[name + "_scale"] = test::float32_tensor({config.vocab_size, 1}, scales);
  TempDirectory directory;
  write(directory, config, made.tensors, kRowLayout.quantization);
  for (const DType dtype : {kF32, kBF16}) {
    MemoryDevice device(1);
    const auto loaded = load_model_weights(directory.path(), {1, 2}, dtype, device);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    EXPECT_EQ(element((*loaded)->embedding, 77, 5), 78);
    EXPECT_EQ(element((*loaded)->lm_head, 9, 159),
              static_cast<float>((*loaded)->shard.vocab_begin + 10));
  }
}

// Loads a checkpoint of row scales after `change` has changed it.
template <typename Change>
Error refusal(Change&& change, const Layout& layout = kRowLayout) {
  auto config = float8_config(kLlama);
  config.num_layers = 1;
  auto made = float8_checkpoint(config, layout);
  std::string quantization = layout.quantization;
  change(made.tensors, quantization);
  TempDirectory directory;
  write(directory, config, made.tensors, quantization);
  MemoryDevice device(1);
  const auto loaded = load_model_weights(directory.path(), {0, 1}, kF32, device);
  return loaded.ok() ? Error(Errc::kInternal, "was loaded") : loaded.error();
}

const std::string kDown = "model.layers.0.mlp.down_proj.weight";

TEST(Float8Weights, NamesTheTensorThatHasNoScale) {
  const auto error = refusal([](RawTensors& tensors, auto&) { tensors.erase(kDown + "_scale"); });
  EXPECT_EQ(error.code, Errc::kNotFound);
  EXPECT_THAT(error.message, AllOf(HasSubstr("model.safetensors"), HasSubstr(kDown + "_scale\"")));
}

TEST(Float8Weights, RefusesScalesOfAShapeThatTheConfigDoesNotName) {
  const std::vector<float> many(400, 1);
  const auto with_shape = [&](const Layout& layout, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    const auto error = refusal(
        [&](RawTensors& tensors, auto&) {
          tensors[kDown + layout.suffix] =
              test::float32_tensor(shape, std::span(many).first(static_cast<size_t>(count)));
        },
        layout);
    EXPECT_EQ(error.code, Errc::kInvalidArgument) << error.to_string();
    EXPECT_THAT(error.message, HasSubstr(kDown + layout.suffix));
    return error.message;
  };
  // down_proj is [160, 352].
  EXPECT_THAT(with_shape(kRowLayout, {159, 1}),
              AllOf(HasSubstr("[159, 1]"), HasSubstr("[160, 1]")));
  with_shape(kRowLayout, {1});
  with_shape(kRowLayout, {1, 352});
  with_shape(kRowLayout, {160, 2});
  EXPECT_THAT(with_shape(kTensorLayout, {160, 1}), HasSubstr("[1]"));
  EXPECT_THAT(with_shape(kBlockLayout, {1, 2}), HasSubstr("[2, 3]"));
  with_shape(kBlockLayout, {3, 2});
  with_shape(kBlockLayout, {});
  with_shape(kBlockLayout, {160, 1});
}

TEST(Float8Weights, RefusesScalesThatAreNoPositiveNumbers) {
  for (const float wrong : {kNaN, std::numeric_limits<float>::infinity(), -0.5F, 0.0F}) {
    const auto error = refusal([&](RawTensors& tensors, auto&) {
      std::vector<float> scales(160, 1);
      scales[17] = wrong;
      tensors[kDown + "_scale"] = test::float32_tensor({160, 1}, scales);
    });
    EXPECT_EQ(error.code, Errc::kCorrupt) << wrong;
    EXPECT_THAT(error.message, AllOf(HasSubstr(kDown + "_scale"), HasSubstr("element 17")));
  }
}

TEST(Float8Weights, RefusesATensorCutShort) {
  const auto error = refusal([](RawTensors& tensors, auto&) { tensors[kDown].bytes.pop_back(); });
  EXPECT_EQ(error.code, Errc::kCorrupt);
  EXPECT_THAT(error.message, AllOf(HasSubstr(kDown), HasSubstr("F8_E4M3")));
}

TEST(Float8Weights, RefusesOtherTypesOfEightBits) {
  for (const std::string dtype : {"F8_E5M2", "I8", "U8", "F8_E8M0"}) {
    const auto error = refusal([&](RawTensors& tensors, auto&) { tensors[kDown].dtype = dtype; });
    EXPECT_EQ(error.code, Errc::kNotFound) << dtype;
    EXPECT_THAT(error.message, AllOf(HasSubstr(kDown), HasSubstr("F8_E4M3")));
  }
}

TEST(Float8Weights, RefusesScalesOfEightBitsAndScalesOfOtherTensors) {
  auto error = refusal([](RawTensors& tensors, auto&) {
    tensors[kDown + "_scale"] = {"F8_E4M3", {160, 1}, std::string(160, '\x38')};
  });
  EXPECT_EQ(error.code, Errc::kUnsupported);
  error = refusal([](RawTensors& tensors, auto&) {
    tensors[kDown] = {"BF16", {160, 352}, std::string(160 * 352 * 2, '\0')};
  });
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message, AllOf(HasSubstr(kDown), HasSubstr("bfloat16"), HasSubstr("_scale")));
  error = refusal([](RawTensors& tensors, auto&) {
    tensors["model.norm.weight"] = {"F8_E4M3", {160}, std::string(160, '\x38')};
  });
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("model.norm.weight"));
}

// What config.json says about quantisation.

Result<ModelConfig> config_with(const std::string& quantization,
                                const std::string& field = "quantization_config",
                                const std::string& modelopt = "") {
  TempDirectory directory;
  directory.write("config.json", "{\"" + field + "\": " + quantization + "," +
                                     test::config_json(test::tiny_model_config()).substr(1));
  if (!modelopt.empty()) directory.write("hf_quant_config.json", modelopt);
  return read_model_config(directory.path());
}

TEST(Float8Weights, ReadsScalesThatArePowersOfTwo) {
  const auto config = float8_config(kLlama);
  auto made = float8_checkpoint(config, kBlockLayout);
  for (const std::string dtype : {"F8_E8M0", "U8"}) {
    // 160 rows and 352 columns: 2 by 3 blocks, of which the last has a scale of 2^(130 - 127).
    made.tensors[kDown + "_scale_inv"] = {dtype, {2, 3}, std::string(5, '\x7f') + '\x82'};
    TempDirectory directory;
    directory.write("model.safetensors", test::raw_safetensors(made.tensors));
    const auto checkpoint = Checkpoint::open(
        directory.path(), Float8Format{.block_rows = 128, .block_cols = 128, .power_scales = true});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    const auto found = checkpoint->find(kDown, std::array<int64_t, 2>{160, 352});
    ASSERT_TRUE(found.ok()) << found.error().to_string();
    EXPECT_EQ(found->scales->run(0, 0).scale, 1);
    EXPECT_EQ(found->scales->run(128, 256).scale, 8);
    made.tensors[kDown + "_scale_inv"].bytes.front() = '\xff';  // not a number
    directory.write("model.safetensors", test::raw_safetensors(made.tensors));
    const auto wrong =
        Checkpoint::open(directory.path(),
                         Float8Format{.block_rows = 128, .block_cols = 128, .power_scales = true})
            ->find(kDown, std::array<int64_t, 2>{160, 352});
    ASSERT_FALSE(wrong.ok());
    EXPECT_EQ(wrong.error().code, Errc::kCorrupt);
    EXPECT_THAT(wrong.error().message, HasSubstr(kDown + "_scale_inv"));
  }
  EXPECT_TRUE(config_with(R"({"quant_method": "fp8", "scale_fmt": "ue8m0",
                              "weight_block_size": [128, 128]})")
                  ->float8->power_scales);
}

TEST(Float8Weights, RefusesBytesAsScalesUnlessTheConfigCallsThemPowers) {
  const auto error = refusal([](RawTensors& tensors, auto&) {
    tensors[kDown + "_scale"] = {"U8", {160, 1}, std::string(160, '\x7f')};
  });
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message,
              AllOf(HasSubstr(kDown + "_scale"), HasSubstr("uint8"), HasSubstr("ue8m0")));
}

TEST(Float8Weights, RefusesEightBitsOfWhichTheConfigSaysNothing) {
  const auto error = refusal([](auto&, std::string& quantization) { quantization.clear(); });
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message, AllOf(HasSubstr("F8_E4M3"), HasSubstr("quantization_config")));
}

TEST(Float8Weights, FingerprintsCoverElementsScalesAndTheSizeOfBlocks) {
  const auto config = float8_config(kLlama);
  const auto made = float8_checkpoint(config, kBlockLayout);
  const auto of = [](const ModelConfig& of_config, const RawTensors& tensors) {
    TempDirectory directory;
    directory.write("model.safetensors", test::raw_safetensors(tensors));
    return fingerprint(of_config, *Checkpoint::open(directory.path()));
  };
  const auto one = of(config, made.tensors);
  EXPECT_EQ(of(config, made.tensors), one);
  auto other = made.tensors;
  other[kDown].bytes.back() ^= 1;
  EXPECT_NE(of(config, other), one);
  other = made.tensors;
  other[kDown + "_scale_inv"].bytes.front() ^= 1;
  EXPECT_NE(of(config, other), one);
  auto blocks = config;
  blocks.float8 = Float8Format{.block_rows = 128, .block_cols = 128};
  const auto of_128 = of(blocks, made.tensors);
  blocks.float8->block_rows = 64;
  EXPECT_NE(of(blocks, made.tensors), of_128);
}

TEST(QuantizationConfig, ReadsTheKindsThatCheckpointsHave) {
  const auto format = [](const std::string& quantization) {
    const auto config = config_with(quantization);
    EXPECT_TRUE(config.ok()) << config.error().to_string();
    return config.ok() ? config->float8 : std::nullopt;
  };
  EXPECT_EQ(format("null"), std::nullopt);
  EXPECT_EQ(format(kTensorLayout.quantization), (Float8Format{.per_tensor = true}));
  EXPECT_EQ(format(R"({"quant_algo": "FP8", "producer": {"name": "modelopt"}})"),
            (Float8Format{.per_tensor = true}));
  EXPECT_EQ(format(kRowLayout.quantization), (Float8Format{.per_row = true}));
  EXPECT_EQ(format(kFbgemmLayout.quantization), (Float8Format{.per_row = true}));
  EXPECT_EQ(format(kBlockLayout.quantization),
            (Float8Format{.block_rows = 128, .block_cols = 128}));
  EXPECT_EQ(format(R"({"quant_method": "fp8", "activation_scheme": "static"})"),
            (Float8Format{.per_tensor = true}));
  EXPECT_EQ(format(R"({"quant_method": "compressed-tensors", "format": "float-quantized",
                       "sparsity_config": {"format": "dense"}, "transform_config": {},
                       "config_groups": {
      "a": {"weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}},
      "b": {"weights": {"num_bits": 8, "type": "float", "strategy": "block",
                        "block_structure": [64, 128]}}, "c": {"weights": null}}})"),
            (Float8Format{.per_tensor = true, .block_rows = 64, .block_cols = 128}));
  const auto old = config_with(kRowLayout.quantization, "compression_config");
  ASSERT_TRUE(old.ok()) << old.error().to_string();
  EXPECT_EQ(old->float8, (Float8Format{.per_row = true}));
}

TEST(QuantizationConfig, ReadsModelOptsFileWhereTheConfigSaysNothing) {
  const auto with = [](const std::string& file) {
    return config_with("null", "quantization_config", file);
  };
  const auto config =
      with(R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8",
               "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}})");
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->float8, (Float8Format{.per_tensor = true}));
  const auto cache_alone =
      with(R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})");
  ASSERT_TRUE(cache_alone.ok()) << cache_alone.error().to_string();
  EXPECT_EQ(cache_alone->float8, std::nullopt);
  const auto nvfp4 = with(R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})");
  ASSERT_FALSE(nvfp4.ok());
  EXPECT_EQ(nvfp4.error().code, Errc::kUnsupported);
  EXPECT_THAT(nvfp4.error().message,
              HasSubstr("/hf_quant_config.json: quantization.quant_algo = \"NVFP4\""));
}

TEST(QuantizationConfig, RefusesEverythingElseByFieldAndValue) {
  const auto compressed = [](const std::string& weights, const std::string& rest = "") {
    return R"({"quant_method": "compressed-tensors", "format": "float-quantized",)" + rest +
           R"("config_groups": {"g": {"weights": )" + weights + "}}}";
  };
  const std::string good = R"({"num_bits": 8, "type": "float", "strategy": "tensor"})";
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"bits": 4})", "quantization_config.quant_method is missing"},
      {R"({"quant_method": "gptq"})", "quantization_config.quant_method = \"gptq\""},
      {R"({"quant_method": "mxfp4"})", "quantization_config.quant_method = \"mxfp4\""},
      {R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", "quant_algo = \"NVFP4\""},
      {R"({"quant_method": "fp8", "fmt": "e5m2"})", "quantization_config.fmt = \"e5m2\""},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
       "format = \"pack-quantized\""},
      {compressed(good, R"("sparsity_config": {"format": "sparse-24-bitmask"},)"),
       "sparsity_config.format = \"sparse-24-bitmask\""},
      {compressed(good, R"("transform_config": {"config_groups": {}},)"), "transform_config"},
      {compressed(R"({"num_bits": 4, "type": "float", "strategy": "tensor"})"),
       "config_groups.g.weights.num_bits = 4"},
      {compressed(R"({"num_bits": 8, "type": "int", "strategy": "channel"})"),
       "config_groups.g.weights.type = \"int\""},
      {compressed(R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32})"),
       "config_groups.g.weights.strategy = \"group\""},
      {compressed(R"({"num_bits": 8, "type": "float", "symmetric": false})"),
       "config_groups.g.weights.symmetric = false"},
  };
  for (const auto& [quantization, because] : cases) {
    const auto config = config_with(quantization);
    ASSERT_FALSE(config.ok()) << quantization;
    EXPECT_EQ(config.error().code, Errc::kUnsupported) << config.error().to_string();
    EXPECT_THAT(config.error().message, AllOf(HasSubstr("/config.json: "), HasSubstr(because)));
  }
  for (const char* size : {"[128]", "[128, 0]", "[128, 1.5]", "\"128x128\"", "[128, 128, 1]"}) {
    const auto config =
        config_with(R"({"quant_method": "fp8", "weight_block_size": )" + std::string(size) + "}");
    ASSERT_FALSE(config.ok()) << size;
    EXPECT_EQ(config.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(config.error().message, HasSubstr("weight_block_size"));
  }
}

}  // namespace
}  // namespace millrace::model
