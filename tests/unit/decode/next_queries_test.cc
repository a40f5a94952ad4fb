// SPDX-License-Identifier: Apache-2.0
// For a layer's exact input, the predicted queries are the layer's queries: for every kind of layer
// in Transformers' checkpoints here (tests/models/architectures).
#include "decode/next_queries.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "model/layer_forward.h"
#include "tests/support/compare.h"
#include "tests/support/random_data.h"

namespace millrace::decode {
namespace {

class NextQueriesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(NextQueriesTest, AreTheLayersOwnOfItsOwnInput) {
  const auto device = kernels::make_cpu_device({.num_threads = 1});
  const std::string path =
      std::string(MILLRACE_SOURCE_DIR "/tests/models/architectures/") + GetParam();
  const auto weights = model::load_model_weights(path, {}, DType::kFloat32, *device, 1);
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const auto& config = (*weights)->config;
  auto forward = model::LayerForward::create(*device, **weights, 1);
  auto next = NextQueries::create(*device, **weights);
  ASSERT_TRUE(forward.ok() && next.ok());

  const auto width = static_cast<size_t>(config.num_query_heads) * config.head_dim;
  const auto kv_width = static_cast<size_t>(config.num_kv_heads) * config.head_dim;
  std::vector<float> q(width), k(kv_width), v(kv_width);
  const auto hidden = test::random_normals(5, config.hidden_size);
  // The second length is beyond that at which LongRoPE's frequencies change.
  for (const int64_t prompt_tokens : {200, 1000}) {
    const auto position = static_cast<int32_t>(prompt_tokens + 3);
    next->begin_token(position, prompt_tokens);
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      const auto projected =
          forward->qkv(layer, hidden.data(), 1, &position, prompt_tokens,
                       {.q = q.data(), .k = k.data(), .v = v.data(), .kv_stride = 1});
      ASSERT_TRUE(projected.ok());
      const float* predicted = next->of_layer(layer, hidden.data());
      // Sums of 32 with one operation more or less differ by some units in the last place.
      for (size_t i = 0; i < width; ++i) {
        ASSERT_NEAR(predicted[i], q[i], 1e-5)
            << "layer " << layer << ", element " << i << ", " << prompt_tokens << " tokens";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, NextQueriesTest,
                         ::testing::Values("gemma3", "glm4", "glm4-moe", "gpt-oss", "hy3", "llama3",
                                           "longrope", "minimax", "qwen3-128", "smollm3",
                                           "window_ministral", "window_qwen2", "yarn"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace millrace::decode
