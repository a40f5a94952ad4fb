// SPDX-License-Identifier: Apache-2.0
// Some neurons of an MLP, compared with sums in double precision and with the dense MLP.

#include "decode/mlp/sparse_mlp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "decode/mlp/top_neurons.h"
#include "kernels/cpu/cpu_device.h"
#include "model/layer_forward.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"

namespace millrace::decode {
namespace {

// Not divisible by lanes or tiles: 2 * 64 + 16 + 8.
constexpr int32_t kHidden = 152;
constexpr int32_t kNeurons = 96;
constexpr int32_t kLayer = 1;

struct Sums {
  std::vector<double> sum, magnitude;  // of the terms, [hidden]
};

class SparseMlpTest : public ::testing::Test {
 protected:
  SparseMlpTest() {
    config_.hidden_size = kHidden;
    tensors_ = test::random_tensors(config_, 5);
  }

  std::unique_ptr<model::ModelWeights> load(DType dtype) {
    test::write_checkpoint(config_, tensors_, DType::kFloat32, directory_.path(), 1);
    auto weights = model::load_model_weights(directory_.path(), {}, dtype, *device_, 1);
    MR_CHECK(weights.ok(), "{}", weights.error().to_string());
    return *std::move(weights);
  }

  static SparseMlp make(const model::ModelWeights& weights, int num_threads = 2) {
    auto mlp = SparseMlp::create(weights, num_threads);
    MR_CHECK(mlp.ok(), "{}", mlp.error().to_string());
    return *std::move(mlp);
  }

  static std::vector<float> run(SparseMlp& mlp, const std::vector<float>& hidden,
                                const std::vector<int32_t>& neurons) {
    std::vector<float> activations(neurons.size()), out(kHidden, NAN);
    mlp.activate(kLayer, hidden.data(), neurons, activations);
    mlp.project(kLayer, neurons, activations, out.data());
    return out;
  }

  double weight(std::string_view name, int64_t row, int64_t col) const {
    const auto& tensor = tensors_.at(fmt::format("model.layers.{}.{}.weight", kLayer, name));
    const int64_t cols = tensor.shape.size() == 1 ? 1 : tensor.shape[1];
    return tensor.values[static_cast<size_t>(row * cols + col)];
  }

  // down[:, n] silu(gate_n) up_n, summed over the neurons in double precision.
  Sums reference(const std::vector<float>& hidden, const std::vector<int32_t>& neurons) const {
    double squares = 0;
    for (const float x : hidden) squares += double{x} * x;
    const double scale = 1 / std::sqrt(squares / kHidden + config_.rms_norm_eps);
    Sums sums{std::vector<double>(kHidden), std::vector<double>(kHidden)};
    for (const int32_t n : neurons) {
      double gate = 0, up = 0;
      for (int64_t i = 0; i < kHidden; ++i) {
        const double x =
            hidden[static_cast<size_t>(i)] * scale * weight("post_attention_layernorm", i, 0);
        gate += weight("mlp.gate_proj", n, i) * x;
        up += weight("mlp.up_proj", n, i) * x;
      }
      const double z = gate / (1 + std::exp(-gate)) * up;
      for (int64_t i = 0; i < kHidden; ++i) {
        sums.sum[static_cast<size_t>(i)] += z * weight("mlp.down_proj", i, n);
        sums.magnitude[static_cast<size_t>(i)] += std::abs(z * weight("mlp.down_proj", i, n));
      }
    }
    return sums;
  }

  model::ModelConfig config_ = test::tiny_model_config();
  test::CheckpointTensors tensors_;
  test::TempDirectory directory_;
  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({.num_threads = 1});
};

std::vector<int32_t> all_neurons() {
  std::vector<int32_t> all(kNeurons);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST_F(SparseMlpTest, ChosenNeuronsAddUpAsInDoublePrecision) {
  const auto weights = load(DType::kFloat32);
  auto mlp = make(*weights);
  const auto hidden = test::random_normals(7, kHidden);
  for (const auto& neurons :
       std::vector<std::vector<int32_t>>{{0}, {95}, {3, 17, 18, 40, 95}, all_neurons(), {}}) {
    SCOPED_TRACE(neurons.size());
    const auto out = run(mlp, hidden, neurons);
    const auto expected = reference(hidden, neurons);
    for (size_t i = 0; i < out.size(); ++i) {
      // Gate and up: 152 roundings of numbers about as large as the sum of their terms. The rest is
      // less.
      EXPECT_NEAR(out[i], expected.sum[i], 1e-4 * expected.magnitude[i]) << i;
    }
  }
}

TEST_F(SparseMlpTest, AllNeuronsAreTheDenseMlp) {
  const auto weights = load(DType::kBFloat16);
  auto mlp = make(*weights);
  auto forward = model::LayerForward::create(*device_, *weights, 1);
  ASSERT_TRUE(forward.ok());
  const auto hidden = test::random_normals(8, kHidden);
  std::vector<float> dense(kHidden);
  forward->mlp(kLayer, hidden.data(), 1, dense.data(), false);
  const auto out = run(mlp, hidden, all_neurons());
  const auto expected = reference(hidden, all_neurons());
  for (size_t i = 0; i < out.size(); ++i) {
    // The dense MLP rounds activations to bfloat16: half a unit in the last place of each term.
    EXPECT_NEAR(out[i], dense[i], 0x1p-9 * expected.magnitude[i]) << i;
  }
}

TEST_F(SparseMlpTest, SumsAreTheSameForAnyNumberOfThreads) {
  const auto weights = load(DType::kBFloat16);
  const auto hidden = test::random_normals(9, kHidden);
  auto one = make(*weights, 1);
  const auto expected = run(one, hidden, {1, 2, 30, 60, 61, 90});
  for (const int threads : {2, 3, 7}) {
    auto mlp = make(*weights, threads);
    EXPECT_EQ(run(mlp, hidden, {1, 2, 30, 60, 61, 90}), expected) << threads;
  }
}

TEST_F(SparseMlpTest, ALayerWithExpertsIsRefused) {
  config_ = test::tiny_model_config("MixtralForCausalLM");
  tensors_ = test::random_tensors(config_, 5);
  const auto weights = load(DType::kFloat32);
  const auto mlp = SparseMlp::create(*weights, 1);
  ASSERT_FALSE(mlp.ok());
  EXPECT_EQ(mlp.error().code, Errc::kUnsupported);
  EXPECT_THAT(mlp.error().message, ::testing::HasSubstr("layer 0 has experts"));
}

// By a stable sort: among equal scores the first ones.
std::vector<int32_t> sorted_choice(const std::vector<float>& scores, int64_t count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(count));
  std::ranges::sort(order);
  return order;
}

TEST(TopNeurons, AreThoseOfTheGreatestScores) {
  TopNeurons top;
  std::vector<int32_t> chosen;
  auto scores = test::random_normals(3, 1000);
  for (size_t i = 0; i < scores.size(); i += 3)
    scores[i] = std::round(scores[i]);        // many are equal
  for (float& score : scores) score += 0.0f;  // of two zeros that differ in sign neither is greater
  for (const int64_t count : {0, 1, 2, 499, 500, 999, 1000}) {
    top.choose(scores, count, chosen);
    EXPECT_EQ(chosen, sorted_choice(scores, count)) << count;
  }
}

TEST(TopNeurons, AreAsManyAsAskedForWhateverTheScores) {
  TopNeurons top;
  std::vector<int32_t> chosen;
  top.choose(std::vector<float>{NAN, 1, -NAN, INFINITY, -INFINITY, NAN}, 3, chosen);
  EXPECT_EQ(chosen, (std::vector<int32_t>{0, 3, 5}));
  top.choose(std::vector<float>(5, NAN), 4, chosen);
  EXPECT_EQ(chosen, (std::vector<int32_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace millrace::decode
