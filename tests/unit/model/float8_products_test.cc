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
#include "tests/unit/model/float8_checkpoint.h"
#include "tests/unit/model/memory_device.h"

namespace millrace::model {
namespace {

using test::float8_checkpoint;
using test::float8_config;
using test::Layout;
using test::MemoryDevice;
using test::TempDirectory;
using testing::HasSubstr;

constexpr const char* kLlama = "LlamaForCausalLM";

float element(const kernels::ConstFloat8Matrix& matrix, int64_t row, int64_t col) {
  return to_float(matrix.data[row * matrix.row_stride + col]) * matrix.scales[row];
}

// Layout, tensor-parallel size, device threads (0: as a GPU).
using Combination = std::tuple<Layout, int32_t, int>;

class QuantizedWeights : public testing::TestWithParam<Combination> {};

// Codes under one scale for a row are the file's; of blocks along it, the nearest under the scale of
// the slice's largest: half of a code's distance, an eighth of its power of two at most.
TEST_P(QuantizedWeights, AreTheFilesUnderOneScaleAndElseTheNearest) {
  const auto& [layout, size, num_threads] = GetParam();
  const auto config = float8_config(kLlama);
  const auto made = float8_checkpoint(config, layout);
  TempDirectory directory;
  write(directory, config, made.tensors, layout.quantization);
  const bool exact = layout.block_cols == 0;
  for (int32_t rank = 0; rank < size; ++rank) {
    MemoryDevice device(num_threads);
    const auto loaded = load_model_weights(directory.path(), {rank, size},
                                           {DType::kBFloat16, Quantization::kFloat8}, device, 2);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    const auto& layer = (*loaded)->layers[1].float8;
    const auto& shard = (*loaded)->shard;
    EXPECT_EQ((*loaded)->layers[1].qkv.data, nullptr);
    const auto expect = [&](const kernels::ConstFloat8Matrix& part, int64_t from, int64_t count,
                            const std::string& name, int64_t first_row, int64_t first_col = 0) {
      const auto full = "model.layers.1." + name;
      const auto& values = made.values.at(full);
      const int64_t cols = made.tensors.at(full).shape[1];
      for (int64_t row = 0; row < count; ++row) {
        for (int64_t col = 0; col < part.cols; ++col) {
          const float value =
              values.at(static_cast<size_t>((first_row + row) * cols + first_col + col));
          const float stored = element(part, from + row, col);
          const float half_step =
              std::max(std::abs(value) / 16, 0x1p-10F * part.scales[from + row]) * 1.0001F;
          ASSERT_LE(std::abs(stored - value), exact ? 0 : half_step)
              << full << " row " << row << " column " << col << " on rank " << rank;
        }
      }
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
  EXPECT_EQ(arithmetic_name({DType::kBFloat16, Quantization::kFloat8}), "bfloat16 fp8");
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

  // K, then the sum of what attention's output and the MLP add.
  std::vector<float> run(int64_t rows) {
    const auto& config = weights_->config;
    auto forward = LayerForward::create(device_, *weights_, rows);
    EXPECT_TRUE(forward.ok());
    const auto hidden = test::random_normals(5, rows * config.hidden_size);
    const int64_t kv = config.num_kv_heads * rows * config.head_dim;
    std::vector<float> q(static_cast<size_t>(rows * config.num_query_heads * config.head_dim));
    std::vector<float> k(static_cast<size_t>(kv)), v(k.size());
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < rows; ++i) positions.push_back(i);
    forward->qkv(0, hidden.data(), rows, positions.data(), rows,
                 {.q = q.data(), .k = k.data(), .v = v.data(), .kv_stride = rows});
    std::vector<float> out(static_cast<size_t>(rows * config.hidden_size));
    forward->attention_output(0, q.data(), rows, out.data(), /*accumulate=*/false);
    forward->mlp(0, hidden.data(), rows, out.data(), /*accumulate=*/true);
    k.insert(k.end(), out.begin(), out.end());
    return k;
  }

 private:
  kernels::Device& device_;
  std::unique_ptr<ModelWeights> weights_;
};

double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

TEST(QuantizedLayer, IsTheReferencesAndNearTheLayerOfWideProducts) {
  const auto config = float8_config("Qwen2ForCausalLM");
  TempDirectory directory;
  test::RawTensors tensors;
  for (const auto& [name, tensor] : test::random_tensors(config, 3)) {
    tensors[name] = test::float32_tensor(tensor.shape, tensor.values);
  }
  write(directory, config, tensors, "");
  const auto cpu = kernels::make_cpu_device({.num_threads = 2});
  const auto reference = kernels::make_ref_device();
  const Arithmetic quantized{DType::kFloat32, Quantization::kFloat8};
  for (const int64_t rows : {1, 37}) {
    const auto expected = Layer(directory.path(), *reference, quantized).run(rows);
    const auto actual = Layer(directory.path(), *cpu, quantized).run(rows);
    // A few numbers of thousands lie on the border of two codes, and go to the other.
    EXPECT_LT(relative_error(actual, expected), 2e-3);
    // A code is off by up to 1/16, evenly spread: 1/28 in the mean square. Both factors of each of
    // three products in a row.
    const auto wide = Layer(directory.path(), *cpu, DType::kFloat32).run(rows);
    EXPECT_LT(relative_error(actual, wide), 0.1);
    EXPECT_GT(relative_error(actual, wide), 0.005);
  }
}

}  // namespace
}  // namespace millrace::model
