// SPDX-License-Identifier: Apache-2.0
#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include "model/checkpoint/checkpoint.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace millrace::model {
namespace {

std::string fingerprint_of(const ModelConfig& config, const test::CheckpointTensors& tensors,
                           DType dtype = DType::kFloat32, int num_files = 1) {
  test::TempDirectory directory;
  test::write_checkpoint(config, tensors, dtype, directory.path(), num_files);
  return fingerprint(config, *Checkpoint::open(directory.path()));
}

TEST(Fingerprint, IsTheSameWhereverAndInHoweverManyFilesTheTensorsAre) {
  auto config = test::tiny_model_config();
  const auto tensors = test::random_tensors(config, 1);
  const auto one = fingerprint_of(config, tensors);
  EXPECT_EQ(one.size(), 16u);
  EXPECT_EQ(fingerprint_of(config, tensors, DType::kFloat32, 3), one);
  config.name = "renamed";
  config.eos_token_ids = {7};  // ends generation, changes no cache
  EXPECT_EQ(fingerprint_of(config, tensors), one);
}

TEST(Fingerprint, TellsOtherWeightsDtypesAndConfigsApart) {
  auto config = test::tiny_model_config();
  auto tensors = test::random_tensors(config, 1);
  const auto one = fingerprint_of(config, tensors);
  EXPECT_NE(fingerprint_of(config, test::random_tensors(config, 2)), one);
  EXPECT_NE(fingerprint_of(config, tensors, DType::kBFloat16), one);
  for (const char* name : {"model.norm.weight", "model.layers.1.mlp.down_proj.weight"}) {
    auto changed = tensors;
    changed.find(name)->second.values.back() += 1;
    EXPECT_NE(fingerprint_of(config, changed), one) << name;
  }
  const auto expect_another = [&](auto&& change) {
    auto other = config;
    change(other);
    EXPECT_NE(fingerprint_of(other, tensors), one);
  };
  expect_another([](ModelConfig& other) { other.rope_theta *= 2; });
  expect_another([](ModelConfig& other) { other.rotary_dim = 8; });
  expect_another([](ModelConfig& other) { other.layer_windows = {0, 64}; });
  expect_another([](ModelConfig& other) { other.rope_scaling = LinearRopeScaling{.factor = 2}; });
}

TEST(Fingerprint, TellsWeightsApartThatDifferInAnyNumber) {
  const auto config = test::tiny_model_config();
  const auto tensors = test::random_tensors(config, 1);
  const auto one = fingerprint_of(config, tensors);
  const std::string name = "model.layers.0.mlp.gate_proj.weight";
  const auto count = tensors.find(name)->second.values.size();
  for (size_t i = 0; i < count; i += 509) {
    auto changed = tensors;
    changed[name].values[i] += 1;
    EXPECT_NE(fingerprint_of(config, changed), one) << i;
  }
}

TEST(Fingerprint, DoesNotDependOnThreadsOrPrefixes) {
  const auto config = test::tiny_model_config();
  const auto tensors = test::random_tensors(config, 1);
  test::TempDirectory directory;
  test::write_checkpoint(config, tensors, DType::kFloat32, directory.path(), 2);
  const auto checkpoint = Checkpoint::open(directory.path());
  EXPECT_EQ(fingerprint(config, *checkpoint, 1), fingerprint(config, *checkpoint, 3));
  test::CheckpointTensors bare;
  for (const auto& [stored, tensor] : tensors) {
    bare[stored.starts_with("model.") ? stored.substr(6) : stored] = tensor;
  }
  EXPECT_EQ(fingerprint_of(config, bare), fingerprint(config, *checkpoint));
}

TEST(Fingerprint, TellsNormsOfHeadsApart) {
  auto config = test::tiny_model_config();
  const auto tensors = test::random_tensors(config, 1);
  const auto one = fingerprint_of(config, tensors);
  config.qk_norm = true;
  EXPECT_NE(fingerprint_of(config, tensors), one);
}

TEST(Fingerprint, TellsWaysToMixExpertsApart) {
  auto config = test::tiny_model_config("Qwen3MoeForCausalLM");
  const auto tensors = test::random_tensors(config, 1);
  const auto one = fingerprint_of(config, tensors);
  config.experts.experts_per_token = 1;
  const auto other = fingerprint_of(config, tensors);
  EXPECT_NE(other, one);
  config.experts.weights_sum_to_one = true;
  EXPECT_NE(fingerprint_of(config, tensors), other);
}

TEST(Fingerprint, TellsScalingsOfTheRotaryEmbeddingApart) {
  auto config = test::tiny_model_config();
  const auto tensors = test::random_tensors(config, 1);
  LongRopeScaling scaling{.short_factors = std::vector(8, 1.0),
                          .long_factors = std::vector(8, 2.0),
                          .original_max_position_embeddings = 4096};
  config.rope_scaling = scaling;
  const auto one = fingerprint_of(config, tensors);
  scaling.long_factors.back() = 3;
  config.rope_scaling = scaling;
  const auto other_factor = fingerprint_of(config, tensors);
  EXPECT_NE(other_factor, one);
  scaling.original_max_position_embeddings = 8192;
  config.rope_scaling = scaling;
  EXPECT_NE(fingerprint_of(config, tensors), other_factor);
}

}  // namespace
}  // namespace millrace::model
