// SPDX-License-Identifier: Apache-2.0
// Parts of models that a device cannot compute are reported by file, field and value, before the
// weights are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/weights.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/model/memory_device.h"

namespace millrace::model {
namespace {

using testing::HasSubstr;

// Sizes like a GPU's: heads of 64 times a power of two, widths that are multiples of 8, and smaller
// limits for each.
class DeviceSizes : public testing::Test {
 protected:
  std::string refusal(int32_t num_ranks = 1) {
    test::TempDirectory directory;
    directory.write("config.json", test::config_json(config_).insert(1, fields_));
    test::MemoryDevice device(0);
    device.set_head_dims(64, max_head_dim_, 16);
    device.set_doubling_head_dims(doubling_);
    device.set_width_step(8);
    device.set_max_hidden_size(1024);
    const auto loaded =
        load_model_weights(directory.path(), {0, num_ranks}, DType::kBFloat16, device);
    EXPECT_FALSE(loaded.ok());
    if (loaded.ok()) return "";
    EXPECT_EQ(loaded.error().code, Errc::kUnsupported);
    const std::string& message = loaded.error().message;
    EXPECT_TRUE(message.starts_with(directory.path() + "/config.json: ")) << message;
    return message.substr(message.find(": ") + 2);
  }

  ModelConfig config_ = with_head_dim(64);
  std::string fields_;  // before those of config_
  int32_t max_head_dim_ = 128;
  bool doubling_ = false;
  static ModelConfig with_head_dim(int32_t head_dim) {
    auto config = test::tiny_model_config();
    config.head_dim = head_dim;
    return config;
  }
};

TEST_F(DeviceSizes, AreSaidWithTheFieldAndItsValue) {
  config_.head_dim = 96;
  EXPECT_EQ(refusal(),
            "head_dim = 96: memory does not compute it; supported: multiples of 64 up to 128");
  config_.head_dim = 256;
  EXPECT_EQ(refusal(),
            "head_dim = 256: memory does not compute it; supported: multiples of 64 up to 128");
  doubling_ = true;
  config_.head_dim = 192;
  max_head_dim_ = 256;
  EXPECT_EQ(
      refusal(),
      "head_dim = 192: memory does not compute it; supported: multiples of 64 by powers of two "
      "up to 256");
  config_.head_dim = 512;
  EXPECT_EQ(
      refusal(),
      "head_dim = 512: memory does not compute it; supported: multiples of 64 by powers of two "
      "up to 256");
  config_ = with_head_dim(64);
  config_.hidden_size = 2048;
  EXPECT_EQ(refusal(),
            "hidden_size = 2048: memory does not compute it; supported: multiples of 8 up to 1024");
  config_.hidden_size = 68;
  EXPECT_EQ(refusal(),
            "hidden_size = 68: memory does not compute it; supported: multiples of 8 up to 1024");
  config_ = with_head_dim(64);
  config_.ffn_size = 100;
  EXPECT_EQ(refusal(),
            "intermediate_size = 100: memory does not compute it; supported: multiples of 8");
  config_.ffn_size = 104;
  EXPECT_EQ(
      refusal(2),
      "intermediate_size = 104, 52 on each of 2 tensor-parallel ranks: memory does not compute "
      "it; supported: multiples of 8");
}

TEST_F(DeviceSizes, OfWhatTurnsAreSaidInElements) {
  config_ = test::tiny_model_config("Phi3ForCausalLM");
  config_.head_dim = 64;
  fields_ = R"("partial_rotary_factor": 0.375, )";
  EXPECT_EQ(
      refusal(),
      "partial_rotary_factor = 0.375, 24 of the 64 elements of a head: memory does not compute "
      "it; supported: multiples of 16 elements");
}

}  // namespace
}  // namespace millrace::model
