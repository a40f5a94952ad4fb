// SPDX-License-Identifier: Apache-2.0
// Neurons that a file predicts: which ones, of which layer, and which files are refused.

#include "decode/mlp/predicted_mlp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local/local_group.h"
#include "kernels/cpu/cpu_device.h"
#include "model/generator.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/decode/predictor_file.h"

namespace millrace::decode {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kHidden = 64;
constexpr int32_t kNeurons = 96;
constexpr int32_t kLayers = 4;

class PredictedMlpTest : public ::testing::Test {
 protected:
  PredictedMlpTest() {
    config_.num_layers = kLayers;
    tensors_ = test::random_tensors(config_, 11);
    weights_ = load(tensors_, {});
    predictor_ = test::blank_predictor(config_, 2, tensors_.at("model.embed_tokens.weight").values);
  }

  std::unique_ptr<model::ModelWeights> load(const test::CheckpointTensors& tensors,
                                            model::TensorParallel tp) {
    const test::TempDirectory directory;
    test::write_checkpoint(config_, tensors, DType::kFloat32, directory.path(), 1);
    auto weights = model::load_model_weights(directory.path(), tp, DType::kFloat32, *device_, 1);
    MR_CHECK(weights.ok(), "{}", weights.error().to_string());
    return *std::move(weights);
  }

  std::string write() {
    const auto path = directory_.path() + "/neurons.safetensors";
    test::write_predictor(path, predictor_);
    return path;
  }
  std::unique_ptr<PredictedMlp> open(double share) {
    auto mlp = PredictedMlp::open({.predictor_path = write(), .share = share}, *weights_, 2);
    MR_CHECK(mlp.ok(), "{}", mlp.error().to_string());
    return *std::move(mlp);
  }
  Error refused() {
    const auto mlp = PredictedMlp::open({.predictor_path = write()}, *weights_, 1);
    MR_CHECK(!mlp.ok(), "the file was taken");
    return mlp.error();
  }

  // Neuron n of the layer is scored by element `element` of the layer's input, times `factor`.
  void score_by(int32_t layer, int64_t neuron, int64_t element, int64_t rank_row, float factor) {
    const auto prefix = fmt::format("layers.{}.", layer);
    predictor_.at(prefix + "reduce").values[static_cast<size_t>(rank_row * kHidden + element)] = 1;
    predictor_.at(prefix + "expand").values[static_cast<size_t>(rank_row * kNeurons + neuron)] =
        factor;
  }
  void prefer(int32_t layer, int64_t neuron) {
    predictor_.at(fmt::format("layers.{}.bias", layer)).values[static_cast<size_t>(neuron)] = 1;
  }

  // What the layer's MLP adds with only these neurons.
  std::vector<float> mlp_of(int32_t layer, const std::vector<float>& hidden,
                            const std::vector<int32_t>& neurons) {
    auto mlp = SparseMlp::create(*weights_, 1);
    std::vector<float> activations(neurons.size()), out(kHidden);
    mlp->activate(layer, hidden.data(), neurons, activations);
    mlp->project(layer, neurons, activations, out.data());
    return out;
  }

  std::vector<int32_t> generate(const model::ModelWeights& weights, model::TokenMlp* mlp) {
    const auto tp = std::move(comm::LocalGroup::create(1).front());
    const auto cp = std::move(comm::LocalGroup::create(1).front());
    auto generator = model::Generator::create(*device_, weights, *tp, *cp, 24);
    MR_CHECK(generator.ok(), "{}", generator.error().to_string());
    const kernels::KvSlab empty{.dtype = DType::kFloat32,
                                .num_kv_heads = weights.shard.num_kv_heads,
                                .head_dim = config_.head_dim};
    const std::vector slabs(kLayers, empty);
    const auto tokens = generator->generate(
        {.prompt = slabs, .mlp = mlp, .first_token = 7, .max_tokens = 24, .ignore_eos = true},
        [] { return Deadline::after(std::chrono::seconds(60)); });
    MR_CHECK(tokens.ok(), "{}", tokens.error().to_string());
    return *tokens;
  }

  model::ModelConfig config_ = test::tiny_model_config();
  test::CheckpointTensors tensors_;
  test::PredictorTensors predictor_;
  test::TempDirectory directory_;
  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({.num_threads = 1});
  std::unique_ptr<model::ModelWeights> weights_;
};

TEST_F(PredictedMlpTest, AScoreIsTheMapOfTheNormalisedInput) {
  score_by(2, 10, 5, 0, 0.5f);
  score_by(2, 11, 5, 0, -0.25f);
  score_by(2, 11, 60, 1, 2.0f);
  prefer(2, 12);
  auto predictor = NeuronPredictor::open(write(), *weights_, 2);
  ASSERT_TRUE(predictor.ok()) << predictor.error().to_string();
  std::vector<float> input(kHidden, 0.0f), scores(kNeurons);
  input[5] = 3;
  input[60] = -4;
  predictor->score(2, input.data(), scores);
  const double rms = std::sqrt(25.0 / kHidden + config_.rms_norm_eps);
  for (int32_t n = 0; n < kNeurons; ++n) {
    const double expected = n == 10   ? 0.5 * 3 / rms
                            : n == 11 ? (-0.25 * 3 - 2.0 * 4) / rms
                            : n == 12 ? 1
                                      : 0;
    EXPECT_NEAR(scores[static_cast<size_t>(n)], expected, 1e-5 * std::abs(expected)) << n;
  }
}

TEST_F(PredictedMlpTest, ARankScoresItsOwnNeurons) {
  prefer(1, 3);
  prefer(1, 48 + 5);
  for (const int32_t rank : {0, 1}) {
    const auto weights = load(tensors_, {.rank = rank, .size = 2});
    auto predictor = NeuronPredictor::open(write(), *weights, 1);
    ASSERT_TRUE(predictor.ok()) << predictor.error().to_string();
    std::vector<float> scores(kNeurons / 2);
    predictor->score(1, std::vector<float>(kHidden, 1.0f).data(), scores);
    std::vector<float> expected(kNeurons / 2, 0.0f);
    expected[rank == 0 ? 3 : 5] = 1;
    EXPECT_EQ(scores, expected) << rank;
  }
}

TEST_F(PredictedMlpTest, ALayersInputChoosesTheNeuronsOfTheNextLayer) {
  // Two of 96 neurons: 20 and 21 if element 5 of the input is positive, otherwise 30 and 31.
  for (const int32_t layer : {1, 2, 3}) {
    for (const int64_t neuron : {20, 21}) score_by(layer, neuron, 5, 0, 1);
    for (const int64_t neuron : {30, 31}) score_by(layer, neuron, 5, 0, -1);
  }
  const auto mlp = open(2.0 / kNeurons);
  auto inputs = std::vector<std::vector<float>>(kLayers, std::vector<float>(kHidden, 0.5f));
  inputs[0][5] = 2;
  inputs[1][5] = -2;
  inputs[2][5] = 2;
  inputs[3][5] = 2;
  const std::vector<std::vector<int32_t>> expected = {{}, {20, 21}, {30, 31}, {20, 21}};
  std::vector<float> out(kHidden);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const auto& input = inputs[static_cast<size_t>(layer)];
    mlp->begin_layer(layer, input.data());
    const auto after_attention = test::random_normals(20, kHidden);
    ASSERT_EQ(mlp->run(layer, after_attention.data(), out.data()), layer > 0);
    if (layer == 0) continue;
    EXPECT_EQ(out, mlp_of(layer, after_attention, expected[static_cast<size_t>(layer)])) << layer;
  }
}

TEST_F(PredictedMlpTest, TokensAreThoseOfAModelThatHasTheseNeuronsAlone) {
  const std::vector<int32_t> kept = {2, 3, 40, 41, 42, 77, 90, 95};
  auto pruned = tensors_;
  for (int32_t layer = 1; layer < kLayers; ++layer) {
    for (const int32_t n : kept) prefer(layer, n);
    auto& down = pruned.at(fmt::format("model.layers.{}.mlp.down_proj.weight", layer)).values;
    for (int32_t n = 0; n < kNeurons; ++n) {
      if (std::ranges::find(kept, n) != kept.end()) continue;
      for (int64_t row = 0; row < kHidden; ++row) {
        down[static_cast<size_t>(row * kNeurons + n)] = 0;
      }
    }
  }
  const auto mlp = open(static_cast<double>(kept.size()) / kNeurons);
  const auto tokens = generate(*weights_, mlp.get());
  EXPECT_EQ(tokens, generate(*load(pruned, {}), nullptr));
  EXPECT_NE(tokens, generate(*weights_, nullptr));
}

TEST_F(PredictedMlpTest, WithAllNeuronsTokensAreThoseOfDenseMlps) {
  const auto mlp = open(1);
  EXPECT_EQ(generate(*weights_, mlp.get()), generate(*weights_, nullptr));
}

TEST_F(PredictedMlpTest, TheReportCountsWhatATokenReads) {
  const auto report = open(0.25)->report();
  EXPECT_EQ(report.share, 0.25);
  EXPECT_EQ(report.neurons, 24);
  EXPECT_EQ(report.rank, 2);
  const int64_t neuron_bytes = 3 * kHidden * 4;
  const int64_t predictor_bytes = 2 * 2 * (kHidden + kNeurons) + 4 * kNeurons;
  EXPECT_EQ(report.dense_bytes_per_token, kLayers * kNeurons * neuron_bytes);
  EXPECT_EQ(report.bytes_per_token,
            kNeurons * neuron_bytes + (kLayers - 1) * (24 * neuron_bytes + predictor_bytes));
}

TEST_F(PredictedMlpTest, AFileThatIsNoneIsRefusedByName) {
  const auto missing = PredictedMlp::open({.predictor_path = "/nowhere/x"}, *weights_, 1);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr("/nowhere/x"));
  const auto path = directory_.path() + "/text";
  std::ofstream(path) << "no safetensors file";
  const auto text = PredictedMlp::open({.predictor_path = path}, *weights_, 1);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, Errc::kCorrupt);
  EXPECT_THAT(text.error().message, HasSubstr(path));
}

TEST_F(PredictedMlpTest, AMissingTensorIsRefusedByName) {
  predictor_.erase("layers.3.bias");
  const auto error = refused();
  EXPECT_EQ(error.code, Errc::kNotFound);
  EXPECT_THAT(error.message, HasSubstr("neurons.safetensors"));
  EXPECT_THAT(error.message, HasSubstr("layers.3.bias"));
}

TEST_F(PredictedMlpTest, ATensorOfAnotherShapeOrTypeIsRefusedByName) {
  const auto good = predictor_;
  const auto expect = [&](const std::string& name, DType dtype, std::vector<int64_t> shape,
                          const std::string& why) {
    predictor_ = good;
    predictor_[name] = {dtype, shape, {}};
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    predictor_[name].values.resize(static_cast<size_t>(count));
    const auto error = refused();
    EXPECT_EQ(error.code, Errc::kInvalidArgument) << error.message;
    EXPECT_THAT(error.message, HasSubstr("neurons.safetensors: tensor " + name + " is " + why));
  };
  expect("layers.2.expand", DType::kBFloat16, {2, 95},
         "bfloat16 [2, 95], the model asks for bfloat16 [2, 96]");
  expect("layers.3.reduce", DType::kBFloat16, {3, 64}, "bfloat16 [3, 64]");  // of another rank
  expect("layers.1.reduce", DType::kBFloat16, {0, 64}, "bfloat16 [0, 64]");
  expect("layers.1.bias", DType::kBFloat16, {96}, "bfloat16 [96]");
  expect("embedding_rows", DType::kFloat32, {3, 63}, "float32 [3, 63]");
}

TEST_F(PredictedMlpTest, NumbersThatAreNotFiniteAreRefused) {
  predictor_.at("layers.2.expand").values[17] = INFINITY;
  const auto error = refused();
  EXPECT_EQ(error.code, Errc::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("layer 2"));
}

TEST_F(PredictedMlpTest, AFileOfAnotherModelIsRefused) {
  predictor_.at("embedding_rows").values[2 * kHidden + 3] += 0.125f;
  const auto error = refused();
  EXPECT_EQ(error.code, Errc::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("neurons.safetensors: made for another model"));
  EXPECT_THAT(error.message,
              HasSubstr(fmt::format("token {} differs", config_.vocab_size * 2 / 3)));
}

TEST_F(PredictedMlpTest, AFileOfTheModelInAnotherFormatIsTaken) {
  for (float& value : predictor_.at("embedding_rows").values) {
    value *= 1 + 0x1p-9f;  // as far as rounding to bfloat16 goes
  }
  EXPECT_TRUE(PredictedMlp::open({.predictor_path = write()}, *weights_, 1).ok());
}

}  // namespace
}  // namespace millrace::decode
