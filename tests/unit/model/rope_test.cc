#include "model/config/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace millrace::model {
namespace {

TEST(RopeInvFreq, IsAPowerOfThetaPerPairOfElements) {
  ModelConfig config;
  config.head_dim = 8;
  config.rope_theta = 10000;
  EXPECT_EQ(rope_inv_freq(config), (std::vector<float>{1.0f, 0.1f, 0.01f, 0.001f}));
}

// Expected values: _compute_llama3_parameters of Transformers 4.45, evaluated in Python's doubles
// for Llama 3.1 8B (theta 500,000, head dimension 128). Indices on both sides of both cut-offs.
TEST(RopeInvFreq, ScalesAsLlama31Does) {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_theta = 500000;
  config.rope_scaling = Llama3RopeScaling{};
  const auto frequencies = rope_inv_freq(config);
  ASSERT_EQ(frequencies.size(), 64u);
  const std::vector<std::pair<size_t, double>> expected{
      {0, 1.0},
      {20, 0.016560440080994446},
      {28, 0.0032114459947525913},  // 1956 tokens a turn, below 8192 / 4: unscaled
      {29, 0.002166570763503359},
      {32, 0.0005248461609929547},
      {34, 0.00017850781276799638},
      {35, 9.556212353964683e-05},  // 8219 tokens a turn, beyond 8192: stretched by 8
      {36, 7.78465527393245e-05},
      {63, 3.068925988914511e-07},
  };
  for (const auto& [index, value] : expected) {
    // One rounding to float, and what the two pow() differ by.
    EXPECT_NEAR(frequencies[index], value, value * 1e-7) << "index " << index;
  }
}

}  // namespace
}  // namespace millrace::model
