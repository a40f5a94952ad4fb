// SPDX-License-Identifier: Apache-2.0
// Models whose linear layers multiply 8-bit floats: how their weights are stored, and what a layer
// makes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ref/ref_device.h"
#include "model/layer_forward.h"
#include "model/weights.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/float8_mixture.h"
#include "tests/unit/model/float8_checkpoint.h"
#include "tests/unit/model/memory_device.h"

namespace millrace::model {
namespace {

using test::float8_checkpoint;
using test::float8_config;
using test::Layout;
using test::MemoryDevice;
using test::relative_error;
using test::TempDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kLlama = "LlamaForCausalLM";

float element(const kernels::ConstFloat8Matrix& matrix, int64_t row, int64_t col) {
  return to_float(matrix.data[row * matrix.row_stride + col]) * matrix.scales[row];
}

// A matrix of a checkpoint, and that `part` has rows of it from (first_row, first_col) on: the codes of
// the file under one scale for a row; of blocks along it, the nearest under the scale of the slice's
// largest: half of a code's distance, an eighth of its power of two at most.
struct FileMatrix {
  const test::Float8Checkpoint& made;
  std::string name;
  bool one_scale;

  void expect_rows(const kernels::ConstFloat8Matrix& part, int64_t from, int64_t count,
                   int64_t first_row, int64_t first_col = 0) const {
    const auto& values = made.values.at(name);
    const int64_t cols = made.tensors.at(name).shape[1];
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t col = 0; col < part.cols; ++col) {
        const float value =
            values.at(static_cast<size_t>((first_row + row) * cols + first_col + col));
        const float half_step =
            std::max(std::abs(value) / 16, 0x1p-10F * part.scales[from + row]) * 1.0001F;
        ASSERT_LE(std::abs(element(part, from + row, col) - value), one_scale ? 0 : half_step)
            << name << " row " << row << " column " << col;
      }
    }
  }
};

// Layout, tensor-parallel size, device threads (0: as a GPU).
using Combination = std::tuple<Layout, int32_t, int>;

class QuantizedWeights : public testing::TestWithParam<Combination> {};

TEST_P(QuantizedWeights, AreTheFilesUnderOneScaleAndElseTheNearest) {
  const auto& [layout, size, num_threads] = GetParam();
  const auto config = float8_config(kLlama);
  const auto made = float8_checkpoint(config, layout);
  TempDirectory directory;
  write(directory, config, made.tensors, layout.quantization);
  for (int32_t rank = 0; rank < size; ++rank) {
    MemoryDevice device(num_threads);
    const auto loaded = load_model_weights(directory.path(), {rank, size},
                                           {DType::kBFloat16, Quantization::kFloat8}, device, 2);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    const auto& layer = (*loaded)->layers[0].float8;  // the last one is not quantised
    const auto& shard = (*loaded)->shard;
    EXPECT_EQ((*loaded)->layers[0].qkv.data, nullptr);
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const auto expect = [&, one_scale = layout.block_cols == 0](
                            const kernels::ConstFloat8Matrix& part, int64_t from, int64_t count,
                            const std::string& name, int64_t first_row, int64_t first_col = 0) {
      FileMatrix{made, "model.layers.0." + name, one_scale}.expect_rows(part, from, count,
                                                                        first_row, first_col);
    };
    const int64_t q = shard.num_query_heads * config.head_dim;
    const int64_t kv = shard.num_kv_heads * config.head_dim;
    const int64_t q_first = shard.first_query_head * config.head_dim;
    expect(layer.qkv, 0, q, "self_attn.q_proj.weight", q_first);
    expect(layer.qkv, q + kv, kv, "self_attn.v_proj.weight", shard.first_kv_head * config.head_dim);
    expect(layer.o, 0, config.hidden_size, "self_attn.o_proj.weight", 0, q_first);
    const int64_t ffn = shard.ffn_size;
    expect(layer.gate_up, ffn, ffn, "mlp.up_proj.weight", rank * ffn);
    expect(layer.down, 0, config.hidden_size, "mlp.down_proj.weight", 0, rank * ffn);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Model, QuantizedWeights,
    testing::Values(Combination{test::kTensorLayout, 1, 1}, Combination{test::kTensorLayout, 2, 0},
                    Combination{test::kRowLayout, 2, 1}, Combination{test::kFbgemmLayout, 1, 0},
                    Combination{test::kBlockLayout, 1, 1}, Combination{test::kBlockLayout, 2, 0}));

// Experts lie one below the other, each its gate, its up; of down a rank has columns.
class QuantizedExperts : public testing::TestWithParam<Combination> {};

TEST_P(QuantizedExperts, AreTheFilesUnderOneScaleAndElseTheNearest) {
  const auto& [layout, size, num_threads] = GetParam();
  for (const char* family : {"MixtralForCausalLM", "Qwen2MoeForCausalLM"}) {
    const auto config = test::float8_mixture_config(family);
    const auto made = float8_checkpoint(config, layout);
    TempDirectory directory;
    write(directory, config, made.tensors, layout.quantization);
    const bool mixtral = config.experts.names == ExpertsConfig::Names::kMixtral;
    const std::string mixture = mixtral ? "block_sparse_moe." : "mlp.";
    for (int32_t rank = 0; rank < size; ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {}", family, rank));
      MemoryDevice device(num_threads);
      const auto loaded = load_model_weights(directory.path(), {rank, size},
                                             {DType::kBFloat16, Quantization::kFloat8}, device, 2);
      ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
      const auto& layer = (*loaded)->layers[1];
      const auto expect = [&, one_scale = layout.block_cols == 0](const ExpertWeights& experts,
                                                                  int64_t number, int64_t width,
                                                                  const std::string& name) {
        const auto matrix = [&](const char* mixtrals, const char* qwens) {
          const std::string prefix = "model.layers.1." + mixture + name;
          return FileMatrix{made, prefix + (mixtral ? mixtrals : qwens) + ".weight", one_scale};
        };
        const auto& [gate_up, down] = experts.float8;
        matrix("w1", "gate_proj").expect_rows(gate_up, number * 2 * width, width, rank * width);
        matrix("w3", "up_proj").expect_rows(gate_up, (number * 2 + 1) * width, width, rank * width);
        matrix("w2", "down_proj")
            .expect_rows(down, number * config.hidden_size, config.hidden_size, 0, rank * width);
      };
      EXPECT_EQ(layer.experts.gate_up.data, nullptr);
      EXPECT_EQ(layer.experts.down.data, nullptr);
      const auto& shard = (*loaded)->shard;
      for (const int number : {0, 3}) {
        expect(layer.experts, number, shard.expert_ffn_size, fmt::format("experts.{}.", number));
      }
      if (!mixtral) expect(layer.shared_expert, 0, shard.shared_ffn_size, "shared_expert.");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Model, QuantizedExperts,
                         testing::Values(Combination{test::kTensorLayout, 1, 1},
                                         Combination{test::kRowLayout, 2, 0},
                                         Combination{test::kFbgemmLayout, 1, 1},
                                         Combination{test::kBlockLayout, 1, 0},
                                         Combination{test::kBlockLayout, 2, 1}));

// A row's scale comes from its largest element.
TEST(QuantizedWeightsOf16Bits, AreTheNearestCodes) {
  const auto config = float8_config(kLlama);
  TempDirectory directory;
  test::RawTensors tensors;
  std::vector<float> down;
  for (const auto& [name, tensor] : test::random_tensors(config, 3)) {
    tensors[name] = test::float32_tensor(tensor.shape, tensor.values);
    if (name == "model.layers.0.mlp.down_proj.weight") down = tensor.values;
  }
  write(directory, config, tensors, "");
  MemoryDevice device(1);
  const auto loaded = load_model_weights(directory.path(), {0, 1},
                                         {DType::kFloat32, Quantization::kFloat8}, device);
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  const auto& part = (*loaded)->layers[0].float8.down;
  ASSERT_EQ(part.rows, config.hidden_size);
  for (int64_t row = 0; row < part.rows; ++row) {
    float largest = 0;
    for (int64_t col = 0; col < part.cols; ++col) {
      const float value = down.at(static_cast<size_t>(row * part.cols + col));
      largest = std::max(largest, std::abs(value));
      const float half_step = std::max(std::abs(value) / 16, 0x1p-10F * part.scales[row]);
      ASSERT_LE(std::abs(element(part, row, col) - value), half_step * 1.0001F)
          << row << ' ' << col;
    }
    EXPECT_FLOAT_EQ(part.scales[row], largest / 448);
  }
}

TEST(QuantizedWeights, AreRefusedByName) {
  auto config = float8_config(kLlama);
  const auto refusal = [&](Arithmetic arithmetic, bool products = true) {
    const auto made = float8_checkpoint(config, test::kRowLayout);
    TempDirectory directory;
    write(directory, config, made.tensors, test::kRowLayout.quantization);
    MemoryDevice device(1);
    device.set_float8_products(products);
    const auto loaded = load_model_weights(directory.path(), {0, 1}, arithmetic, device);
    return loaded.ok() ? Error(Errc::kInternal, "was loaded") : loaded.error();
  };
  auto error = refusal({DType::kFloat16, Quantization::kFloat8});
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("float16"));
  error = refusal({DType::kBFloat16, Quantization::kFloat8}, /*products=*/false);
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("memory"));
  config.ffn_size = 344;
  error = refusal({DType::kBFloat16, Quantization::kFloat8});
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("intermediate_size"));
}

TEST(Arithmetic, NamesTellOneFromAnother) {
  EXPECT_EQ(arithmetic_name(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(arithmetic_name({DType::kBFloat16, Quantization::kFloat8}), "bfloat16 fp8 2");
  EXPECT_EQ(arithmetic_name({DType::kBFloat16, Quantization::kFloat8ExceptQkv}),
            "bfloat16 fp8-except-qkv 2");
}

TEST(Quantization, LeavesQkvOfTheThirdQuarterOfLayersAndTheLast) {
  const auto wide = [](Quantization quantization, int32_t num_layers) {
    std::vector<int32_t> layers;
    for (int32_t i = 0; i < num_layers; ++i) {
      if (!quantizes_qkv(quantization, i, num_layers)) layers.push_back(i);
    }
    return layers;
  };
  EXPECT_THAT(wide(Quantization::kFloat8, 32), ElementsAre(16, 17, 18, 19, 20, 21, 22, 23, 31));
  EXPECT_THAT(wide(Quantization::kFloat8, 30), ElementsAre(15, 16, 17, 18, 19, 20, 21, 22, 29));
  EXPECT_THAT(wide(Quantization::kFloat8, 3), ElementsAre(1, 2));
  EXPECT_THAT(wide(Quantization::kFloat8ExceptQkv, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(wide(Quantization::kNone, 3), ElementsAre(0, 1, 2));
}

// Both halves of a layer on a device, from the same hidden states.
class Layer {
 public:
  Layer(const std::string& directory, kernels::Device& device, Arithmetic arithmetic)
      : device_(device) {
    auto loaded = load_model_weights(directory, {0, 1}, arithmetic, device);
    EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
    weights_ = std::move(*loaded);
  }

  // K of `layer`, then the sum of what its attention's output and its MLP add.
  std::vector<float> run(int64_t rows, int32_t layer = 0) {
    const auto& config = weights_->config;
    auto forward = LayerForward::create(device_, *weights_, rows);
    EXPECT_TRUE(forward.ok());
    const auto hidden = test::random_normals(5, rows * config.hidden_size);
    const int64_t kv = config.num_kv_heads * rows * config.head_dim;
    std::vector<float> q(static_cast<size_t>(rows * config.num_query_heads * config.head_dim));
    std::vector<float> k(static_cast<size_t>(kv)), v(k.size());
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < rows; ++i) positions.push_back(i);
    const auto projected =
        forward->qkv(layer, hidden.data(), rows, positions.data(), rows,
                     {.q = q.data(), .k = k.data(), .v = v.data(), .kv_stride = rows});
    EXPECT_TRUE(projected.ok());
    std::vector<float> out(static_cast<size_t>(rows * config.hidden_size));
    forward->attention_output(layer, q.data(), rows, out.data(), /*accumulate=*/false);
    forward->mlp(layer, hidden.data(), rows, out.data(), /*accumulate=*/true);
    k.insert(k.end(), out.begin(), out.end());
    return k;
  }

  // The last layer is not quantised, but for its experts.
  int32_t last() const { return weights_->config.num_layers - 1; }
  bool has_experts(int32_t layer) const { return weights_->config.has_experts(layer); }

 private:
  kernels::Device& device_;
  std::unique_ptr<ModelWeights> weights_;
};

class QuantizedLayer : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kRows = 37;

  void SetUp() override {
    test::RawTensors tensors;
    for (const auto& [name, tensor] : test::random_tensors(config_, 3)) {
      tensors[name] = test::float32_tensor(tensor.shape, tensor.values);
    }
    write(directory_, config_, tensors, "");
  }

  // Heads that a device attends with.
  static ModelConfig config_of(const char* architecture) {
    auto config = test::float8_mixture_config(architecture);
    config.head_dim = 48;
    config.num_layers = 4;
    return config;
  }

  const ModelConfig config_ = config_of(GetParam());
  TempDirectory directory_;
  const std::unique_ptr<kernels::Device> cpu_ = kernels::make_cpu_device({.num_threads = 2});
};

TEST_P(QuantizedLayer, IsTheReferencesAndNearTheLayerOfWideProducts) {
  const auto reference = kernels::make_ref_device();
  const Arithmetic quantized{DType::kFloat32, Quantization::kFloat8};
  for (const int64_t rows : {int64_t{1}, kRows}) {
    const auto expected = Layer(directory_.path(), *reference, quantized).run(rows);
    const auto actual = Layer(directory_.path(), *cpu_, quantized).run(rows);
    // A few numbers of thousands lie on the border of two codes, and go to the other.
    EXPECT_LT(relative_error(actual, expected), 2e-3);
    // A code is off by up to 1/16, evenly spread: 1/28 in root mean square. Both factors of each
    // of three products in a row are codes.
    const auto wide = Layer(directory_.path(), *cpu_, DType::kFloat32).run(rows);
    EXPECT_LT(relative_error(actual, wide), 0.1);
    EXPECT_GT(relative_error(actual, wide), 0.005);
  }
}

TEST_P(QuantizedLayer, MayLeaveQkvAsItIs) {
  const auto of_layer = [&](Quantization quantization) {
    auto k = Layer(directory_.path(), *cpu_, {DType::kFloat32, quantization}).run(kRows);
    const auto begin = k.begin() + config_.num_kv_heads * kRows * config_.head_dim;
    std::vector<float> sum(begin, k.end());
    k.erase(begin, k.end());
    return std::pair(std::move(k), std::move(sum));
  };
  const auto [wide_k, wide_sum] = of_layer(Quantization::kNone);
  const auto [k, sum] = of_layer(Quantization::kFloat8ExceptQkv);
  EXPECT_EQ(k, wide_k);
  EXPECT_GT(relative_error(sum, wide_sum), 0.005);
  EXPECT_GT(relative_error(of_layer(Quantization::kFloat8).first, wide_k), 0.005);
}

TEST_P(QuantizedLayer, HasQkvAsTheLayerSays) {
  Layer wide(directory_.path(), *cpu_, DType::kFloat32);
  Layer quantized(directory_.path(), *cpu_, {DType::kFloat32, Quantization::kFloat8});
  int num_quantized = 0;
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    const auto num_keys = config_.num_kv_heads * kRows * config_.head_dim;
    auto expected = wide.run(kRows, layer);
    auto keys = quantized.run(kRows, layer);
    expected.resize(static_cast<size_t>(num_keys));
    keys.resize(static_cast<size_t>(num_keys));
    const bool is_quantized = quantizes_qkv(Quantization::kFloat8, layer, config_.num_layers);
    EXPECT_EQ(keys != expected, is_quantized) << layer;
    num_quantized += is_quantized ? 1 : 0;
  }
  EXPECT_GT(num_quantized, 0);
  EXPECT_LT(num_quantized, config_.num_layers - 1);
}

TEST_P(QuantizedLayer, LeavesTheLastLayerAsItIsButForItsExperts) {
  Layer wide(directory_.path(), *cpu_, DType::kFloat32);
  Layer quantized(directory_.path(), *cpu_, {DType::kFloat32, Quantization::kFloat8});
  const int32_t last = wide.last();
  const auto expected = wide.run(kRows, last);
  const auto actual = quantized.run(kRows, last);
  const auto num_keys = config_.num_kv_heads * kRows * config_.head_dim;
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + num_keys, actual.begin()));
  if (wide.has_experts(last)) {
    EXPECT_GT(relative_error(actual, expected), 0.005);
  } else {
    EXPECT_EQ(actual, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Model, QuantizedLayer,
                         testing::Values("Qwen2ForCausalLM", "MixtralForCausalLM",
                                         "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"));

}  // namespace
}  // namespace millrace::model
