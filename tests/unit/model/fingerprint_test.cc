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
  config.rope_theta *= 2;
  EXPECT_NE(fingerprint_of(config, tensors), one);
}

}  // namespace
}  // namespace millrace::model
