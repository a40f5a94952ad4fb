// SPDX-License-Identifier: Apache-2.0
#include "plan/column_cost.h"

#include <gtest/gtest.h>

namespace millrace::plan {
namespace {

// Llama 3 8B: 6,979,321,856 weights in the products of its layers.
model::ModelConfig llama() {
  model::ModelConfig config;
  config.num_layers = 32;
  config.hidden_size = 4096;
  config.num_query_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.ffn_size = 14336;
  return config;
}

TEST(ColumnCost, GrowsWithTheKeysThatRowsSee) {
  // Scores and values of 32 heads of 128: 8,192 multiply-adds a key in each layer.
  const double expected = 1 + 32 * 8192.0 * 65536 / 6979321856;
  EXPECT_NEAR(column_cost(llama(), 131072, 1), expected, 1e-9);
  EXPECT_NEAR(column_cost(llama(), 131072, 0.1), 1 + (expected - 1) / 10, 1e-9);
  EXPECT_NEAR(column_cost(llama(), 262144, 0.5), expected, 1e-9);
  EXPECT_EQ(column_cost(llama(), 131072, 0), 1);
}

TEST(ColumnCost, CountsTheExpertsThatATokenGoesThrough) {
  auto mixture = llama();
  mixture.experts.num_experts = 8;
  mixture.experts.experts_per_token = 2;
  mixture.experts.ffn_size = 14336;
  // A layer's MLP twice: 176,160,768 weights more.
  const double products = 6979321856 + 32 * 176160768.0;
  EXPECT_NEAR(column_cost(mixture, 131072, 1), 1 + 32 * 8192.0 * 65536 / products, 1e-9);
  mixture.experts.dense_layers = {0};
  EXPECT_NEAR(column_cost(mixture, 131072, 1), 1 + 32 * 8192.0 * 65536 / (products - 176160768.0),
              1e-9);
}

TEST(ColumnCost, ADensityThatIsNoneCountsAsTheNearest) {
  EXPECT_EQ(column_cost(llama(), 65536, 1.5), column_cost(llama(), 65536, 1));
  EXPECT_EQ(column_cost(llama(), 65536, -1), 1);
}

}  // namespace
}  // namespace millrace::plan
