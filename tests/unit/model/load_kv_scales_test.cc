// SPDX-License-Identifier: Apache-2.0
#include "model/load_kv_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace millrace::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A checkpoint of two layers that also has these scalars, by their names after
// model.layers.N.self_attn.
class LoadKvScalesTest : public testing::Test {
 protected:
  Result<KvScales> load(const std::map<std::string, test::CheckpointTensor>& scales) const {
    auto tensors = test::random_tensors(config_, 1);
    for (const auto& [name, scale] : scales) tensors["model.layers." + name] = scale;
    test::write_checkpoint(config_, tensors, DType::kFloat32, directory_.path(), 1);
    return load_kv_scales(directory_.path(), config_);
  }
  KvScales loaded(const std::map<std::string, test::CheckpointTensor>& scales) const {
    const auto found = load(scales);
    MR_CHECK(found.ok(), "{}", found.error().to_string());
    return *found;
  }

  const ModelConfig config_ = test::tiny_model_config();
  const test::TempDirectory directory_;
};

TEST_F(LoadKvScalesTest, ReadsTheNamesOfEveryMaker) {
  const KvScales expected{{.k = 0.25F, .v = 3}, {.k = 1, .v = 0.5F}};
  EXPECT_EQ(loaded({{"0.self_attn.k_scale", {{}, {0.25F}}},
                    {"0.self_attn.v_scale", {{1}, {3}}},
                    {"1.self_attn.v_scale", {{}, {0.5F}}}}),
            expected);
  EXPECT_EQ(loaded({{"0.self_attn.attn.k_scale", {{1}, {0.25F}}},
                    {"0.self_attn.attn.v_scale", {{1}, {3}}},
                    {"1.self_attn.attn.v_scale", {{}, {0.5F}}}}),
            expected);
  EXPECT_EQ(loaded({{"0.self_attn.k_proj.k_scale", {{}, {0.25F}}},
                    {"0.self_attn.v_proj.v_scale", {{}, {3}}},
                    {"1.self_attn.v_proj.v_scale", {{}, {0.5F}}}}),
            expected);
}

TEST_F(LoadKvScalesTest, ReadsTheNamesOfOlderTools) {
  const KvScales expected{{.k = 0.25F, .v = 3}, {.k = 1, .v = 1}};
  for (const auto& [k, v] : {std::pair("k_proj.output_scale", "v_proj.output_scale"),
                             std::pair("k_cache.scale", "v_cache.scale"),
                             std::pair("qkv_proj.k_scale", "qkv_proj.v_scale"),
                             std::pair("qkqkv_proj.k_scale", "qkqkv_proj.v_scale")}) {
    EXPECT_EQ(loaded({{std::string("0.self_attn.") + k, {{}, {0.25F}}},
                      {std::string("0.self_attn.") + v, {{}, {3}}}}),
              expected);
  }
  EXPECT_EQ(loaded({{"0.self_attn.kv_scale", {{}, {0.5F}}}}),
            (KvScales{{.k = 0.5F, .v = 0.5F}, {.k = 1, .v = 1}}));
}

TEST_F(LoadKvScalesTest, WhatMayBeAScaleUnderAnotherNameIsRefused) {
  for (const std::string name :
       {"key_scale", "k_zero_point", "attn.kv_scale", "k_bmm_quantizer._amax", "cache.v_scales"}) {
    const auto found = load({{"1.self_attn." + name, {{}, {0.5F}}}});
    ASSERT_FALSE(found.ok()) << name;
    EXPECT_EQ(found.error().code, Errc::kUnsupported);
    EXPECT_THAT(found.error().message, HasSubstr("model.layers.1.self_attn." + name));
  }
  const auto differ = load(
      {{"0.self_attn.k_scale", {{}, {0.5F}}}, {"0.self_attn.k_proj.output_scale", {{}, {0.25F}}}});
  ASSERT_FALSE(differ.ok());
  EXPECT_THAT(differ.error().message, AllOf(HasSubstr(".k_scale"), HasSubstr(".output_scale")));
}

TEST_F(LoadKvScalesTest, ScalesOfOtherThingsAreNone) {
  EXPECT_EQ(loaded({{"0.self_attn.q_scale", {{}, {0.5F}}},
                    {"0.self_attn.prob_output_scale", {{}, {0.5F}}},
                    {"0.self_attn.k_proj.input_scale", {{}, {0.5F}}}}),
            KvScales(2));
}

TEST_F(LoadKvScalesTest, WithoutAnyScalesAreOneWithAWarning) {
  EXPECT_EQ(loaded({}), KvScales(2));
  std::vector<std::string> warnings;
  EXPECT_TRUE(load_kv_scales(directory_.path(), config_, &warnings).ok());
  EXPECT_THAT(warnings, ::testing::ElementsAre(HasSubstr("no scales for 4 of the 4")));

  warnings.clear();
  EXPECT_TRUE(
      load({{"0.self_attn.kv_scale", {{}, {0.5F}}}, {"1.self_attn.v_scale", {{}, {1}}}}).ok());
  EXPECT_TRUE(load_kv_scales(directory_.path(), config_, &warnings).ok());
  EXPECT_THAT(warnings, ::testing::ElementsAre(HasSubstr("no scales for 1 of the 4")));

  warnings.clear();
  EXPECT_TRUE(
      load({{"0.self_attn.kv_scale", {{}, {0.5F}}}, {"1.self_attn.kv_scale", {{}, {1}}}}).ok());
  EXPECT_TRUE(load_kv_scales(directory_.path(), config_, &warnings).ok());
  EXPECT_TRUE(warnings.empty());
}

TEST_F(LoadKvScalesTest, ANumberThatIsNoScaleIsRefusedByItsTensor) {
  for (const float scale : {0.0F, -0.5F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 1e-30F}) {
    const auto found = load({{"1.self_attn.v_scale", {{}, {scale}}}});
    ASSERT_FALSE(found.ok()) << scale;
    EXPECT_EQ(found.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(found.error().message, HasSubstr("model.layers.1.self_attn.v_scale"));
  }
}

// As compressed-tensors stores them with strategy attn_head, or flat. A layer's own scale applies
// to all of its heads.
TEST_F(LoadKvScalesTest, AScaleForEachHeadIsThatHeads) {
  const KvScales expected({{.k = 1, .v = 0.5F},
                           {.k = 2, .v = 0.5F},
                           {.k = 3, .v = 0.5F},
                           {.k = 4, .v = 0.5F},
                           {.k = 1, .v = 5},
                           {.k = 1, .v = 6},
                           {.k = 1, .v = 7},
                           {.k = 1, .v = 8}},
                          /*num_heads=*/4);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4}, {4, 1, 1}, {1, 4, 1, 1}}) {
    const auto found = loaded({{"0.self_attn.k_scale", {shape, {1, 2, 3, 4}}},
                               {"0.self_attn.v_scale", {{1}, {0.5F}}},
                               {"1.self_attn.v_scale", {shape, {5, 6, 7, 8}}}});
    EXPECT_EQ(found, expected);
    EXPECT_TRUE(found.by_head());
  }
}

TEST_F(LoadKvScalesTest, ScalesOfChannelsAreRefused) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{16}, {3}, {4, 16}, {2, 2}}) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const auto found =
        load({{"0.self_attn.k_scale", {shape, std::vector<float>(static_cast<size_t>(count), 1)}}});
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code, Errc::kUnsupported);
    EXPECT_THAT(found.error().message,
                AllOf(HasSubstr("model.layers.0.self_attn.k_scale"), HasSubstr("4 kv heads")));
  }
}

}  // namespace
}  // namespace millrace::model
