// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic/synthetic_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "model/load_model_config.h"
#include "model/synthetic/synthetic_heads.h"
#include "model/weights.h"
#include "tests/unit/model/memory_device.h"

namespace millrace::model {
namespace {

using test::MemoryDevice;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kCapacityBytes = 256 << 20;

std::unique_ptr<ModelWeights> load(const std::string& model, TensorParallel tp, DType dtype,
                                   MemoryDevice& device) {
  auto loaded = load_model_weights(model, tp, dtype, device);
  EXPECT_TRUE(loaded.ok());
  return std::move(*loaded);
}

float element(const kernels::ConstMatrix& matrix, int64_t row, int64_t col) {
  const int64_t i = row * matrix.row_stride + col;
  return matrix.dtype == DType::kFloat32 ? static_cast<const float*>(matrix.data)[i]
                                         : to_float(static_cast<const BFloat16*>(matrix.data)[i]);
}

// Rows [first, first + part.rows) and columns [first_col, ...) of `whole` are `part`.
void expect_slice(const kernels::ConstMatrix& whole, int64_t first, int64_t first_col,
                  const kernels::ConstMatrix& part, int64_t part_row, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < part.cols; ++col) {
      ASSERT_EQ(element(whole, first + row, first_col + col), element(part, part_row + row, col))
          << row << ", " << col;
    }
  }
}

TEST(SyntheticModel, ListsTheNamesWhenItIsGivenAnother) {
  const auto config = load_model_config("synthetic:gpt-9");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(config.error().message,
              AllOf(HasSubstr("synthetic:gpt-9"), HasSubstr("llama-3-8b"), HasSubstr("tiny")));
}

TEST(SyntheticModel, RefusesASeedThatIsNoNumber) {
  for (const char* model : {"synthetic:tiny:", "synthetic:tiny:x", "synthetic:tiny:1x",
                            "synthetic:tiny:-1", "synthetic:tiny:18446744073709551616"}) {
    const auto config = load_model_config(model);
    ASSERT_FALSE(config.ok()) << model;
    EXPECT_EQ(config.error().code, Errc::kInvalidArgument);
  }
  EXPECT_TRUE(load_model_config("synthetic:tiny:18446744073709551615").ok());
}

TEST(SyntheticModel, ShapesAreThoseOfThePublicModels) {
  const auto llama = *load_model_config("synthetic:llama-3-8b");
  EXPECT_EQ(llama.num_layers * llama.num_query_heads, 1024);
  EXPECT_EQ(llama.ffn_size, 14336);
  const auto qwen = *load_model_config("synthetic:qwen2.5-7b");
  EXPECT_EQ(qwen.hidden_size, qwen.num_query_heads * qwen.head_dim);
  EXPECT_EQ(load_model_config("synthetic:llama-3-70b")->group_size(), 8);
  const auto experts = *load_model_config("synthetic:qwen3-30b-a3b");
  EXPECT_EQ(experts.active_ffn_size(), 6144);  // of 128 x 768
}

TEST(SyntheticModel, ExpertsAreSlicedOverRanksAndDiffer) {
  MemoryDevice device(/*num_threads=*/0, kCapacityBytes);
  const auto whole = load("synthetic:tiny-experts", {0, 1}, DType::kBFloat16, device);
  const auto part = load("synthetic:tiny-experts", {1, 2}, DType::kBFloat16, device);
  const auto& all = whole->layers[1].experts;
  const auto& own = part->layers[1].experts;
  ASSERT_EQ(all.num_experts, 16);
  EXPECT_EQ(all.experts_per_token, 4);
  ASSERT_EQ(all.gate_up.rows, 16 * 2 * 128);
  ASSERT_EQ(own.gate_up.rows, 16 * 2 * 64);
  expect_slice(all.gate_up, 3 * 256 + 64, 0, own.gate_up, 3 * 128, 64);             // gate
  expect_slice(all.gate_up, 3 * 256 + 128 + 64, 0, own.gate_up, 3 * 128 + 64, 64);  // up
  expect_slice(all.down, 3 * 256, 64, own.down, 3 * 256, 256);
  EXPECT_NE(element(all.gate_up, 0, 1), element(all.gate_up, 256, 1));
  EXPECT_NE(all.router[1], all.router[256 + 1]);
}

TEST(SyntheticModel, SeedsMakeTheWeights) {
  MemoryDevice device(/*num_threads=*/0, kCapacityBytes);
  const auto first = load("synthetic:tiny:1", {0, 1}, DType::kBFloat16, device);
  const auto again = load("synthetic:tiny", {0, 1}, DType::kBFloat16, device);
  const auto other = load("synthetic:tiny:2", {0, 1}, DType::kBFloat16, device);
  const auto& qkv = first->layers[1].qkv;
  const auto bytes = static_cast<size_t>(qkv.rows * qkv.cols * 2);
  EXPECT_EQ(std::memcmp(qkv.data, again->layers[1].qkv.data, bytes), 0);
  EXPECT_NE(std::memcmp(qkv.data, other->layers[1].qkv.data, bytes), 0);
  EXPECT_NE(std::memcmp(qkv.data, first->layers[0].qkv.data, bytes), 0);
}

TEST(SyntheticModel, RanksSliceTheTensorsOfOne) {
  MemoryDevice device(/*num_threads=*/0, kCapacityBytes);
  const auto whole = load("synthetic:tiny", {0, 1}, DType::kFloat32, device);
  const auto& config = whole->config;
  const int64_t dim = config.head_dim;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto part = load("synthetic:tiny", {rank, 2}, DType::kFloat32, device);
    const auto& shard = part->shard;
    const auto& all = whole->layers[1];
    const auto& own = part->layers[1];
    const int64_t q_rows = shard.num_query_heads * dim, kv_rows = shard.num_kv_heads * dim;
    const int64_t first_k = (config.num_query_heads + shard.first_kv_head) * dim;
    expect_slice(all.qkv, shard.first_query_head * dim, 0, own.qkv, 0, q_rows);
    expect_slice(all.qkv, first_k, 0, own.qkv, q_rows, kv_rows);
    expect_slice(all.o, 0, shard.first_query_head * dim, own.o, 0, own.o.rows);
    expect_slice(all.down, 0, rank * shard.ffn_size, own.down, 0, own.down.rows);
    for (int64_t i = 0; i < q_rows; ++i) {
      ASSERT_EQ(all.qkv_bias[shard.first_query_head * dim + i], own.qkv_bias[i]);
    }
    for (int64_t i = 0; i < kv_rows; ++i) {
      ASSERT_EQ(all.qkv_bias[first_k + i], own.qkv_bias[q_rows + i]);
    }
  }
}

// On the CPU the loader keeps views of what the source made; on a GPU it copies.
TEST(SyntheticModel, IsTheSameOnEveryDevice) {
  MemoryDevice cpu(/*num_threads=*/1, kCapacityBytes), gpu(/*num_threads=*/0, kCapacityBytes);
  const auto on_cpu = load("synthetic:tiny", {0, 1}, DType::kBFloat16, cpu);
  const auto on_gpu = load("synthetic:tiny", {0, 1}, DType::kBFloat16, gpu);
  expect_slice(on_cpu->embedding, 0, 0, on_gpu->embedding, 0, on_gpu->embedding.rows);
  expect_slice(on_cpu->lm_head, 0, 0, on_gpu->lm_head, 0, on_gpu->lm_head.rows);
}

TEST(SyntheticModel, NothingButKeysReadsWhatMakesTokensHeavy) {
  MemoryDevice device(/*num_threads=*/0, kCapacityBytes);
  const auto weights = load("synthetic:tiny", {0, 1}, DType::kFloat32, device);
  const auto& config = weights->config;
  const int64_t first_k = int64_t{config.num_query_heads} * config.head_dim;
  const int64_t first_v = first_k + int64_t{config.num_kv_heads} * config.head_dim;
  double key_square = 0;
  for (const auto& layer : weights->layers) {
    for (int64_t row = 0; row < layer.qkv.rows; ++row) {
      const float first = element(layer.qkv, row, 0);
      if (row >= first_k && row < first_v) {
        key_square += first * first;
      } else {
        ASSERT_EQ(first, 0) << row;
      }
    }
    for (int64_t col = 0; col < layer.o.cols; ++col) ASSERT_EQ(element(layer.o, 0, col), 0);
    for (int64_t col = 0; col < layer.down.cols; ++col) ASSERT_EQ(element(layer.down, 0, col), 0);
    for (int64_t row = 0; row < layer.gate_up.rows; ++row) {
      ASSERT_EQ(element(layer.gate_up, row, 0), 0);
    }
  }
  EXPECT_GT(key_square, 0);
}

TEST(SyntheticModel, OneTokenIn512IsHeavyAndTheFirstIsASink) {
  int heavy = 0;
  for (int32_t token = 1; token < 512 * 1000; ++token) {
    const float heaviness = token_heaviness(1, token);
    if (heaviness == 0) continue;
    ++heavy;
    EXPECT_GE(heaviness, kHeaviest / 2);
    EXPECT_LE(heaviness, kHeaviest);
  }
  EXPECT_NEAR(heavy, 1000, 130);  // four standard deviations of a binomial
  EXPECT_EQ(token_heaviness(1, 0), kSinkHeaviness);
}

TEST(SyntheticPrompt, BeginsWithTheSinkAndExtendsShorterOnes) {
  const auto config = *synthetic_config("synthetic:tiny");
  const auto longer = synthetic_prompt(config, 500, 7);
  auto shorter = synthetic_prompt(config, 100, 7);
  EXPECT_EQ(longer.front(), 0);
  EXPECT_EQ(shorter, std::vector<int32_t>(longer.begin(), longer.begin() + 100));
  for (const int32_t token : longer) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, config.vocab_size);
  }
  EXPECT_NE(longer, synthetic_prompt(config, 500, 8));
}

}  // namespace
}  // namespace millrace::model
