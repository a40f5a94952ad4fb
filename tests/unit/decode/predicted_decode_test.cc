// SPDX-License-Identifier: Apache-2.0
// The decode node with a predictor of neurons.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local/local_transport.h"
#include "decode/decode_node.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/decode/predictor_file.h"
#include "tests/unit/decode/served_prompt.h"

namespace millrace::decode {
namespace {

class PredictedDecodeTest : public ::testing::Test {
 protected:
  PredictedDecodeTest() {
    test::write_checkpoint(config_, tensors_, DType::kFloat32, directory_.path(), 1);
    served_.emplace(
        transport_, clock_,
        test::ServedPrompt::Options{.model_directory = directory_.path(),
                                    .grid = {1, 1},
                                    .tokens = test::random_tokens(130, config_.vocab_size)});
    test::write_predictor(
        predictor_,
        test::blank_predictor(config_, 4, tensors_.at("model.embed_tokens.weight").values));
  }

  DecodeOptions options(int tp) const {
    return {.model_directory = directory_.path(),
            .tp = tp,
            .max_tokens = 12,
            .ignore_eos = true,
            .timeout = std::chrono::minutes(5)};
  }
  Result<DecodeReport> run(const DecodeOptions& options) {
    return decode(transport_, kvclient::from_protocol(served_->manifest()), options);
  }

  const model::ModelConfig config_ = test::tiny_model_config();
  const test::CheckpointTensors tensors_ = test::random_tensors(config_, 21);
  test::TempDirectory directory_;
  const std::string predictor_ = directory_.path() + "/neurons.safetensors";
  comm::LocalTransport transport_;
  testing::FakeClock clock_;
  std::optional<test::ServedPrompt> served_;
};

TEST_F(PredictedDecodeTest, AllNeuronsGiveTheTokensOfDenseDecoding) {
  for (const int tp : {1, 2}) {
    for (const auto attention : {AttentionMode::kDense, AttentionMode::kProgressive}) {
      auto wanted = options(tp);
      wanted.attention = attention;
      const auto dense = run(wanted);
      ASSERT_TRUE(dense.ok()) << dense.error().to_string();
      EXPECT_FALSE(dense->mlp);
      wanted.mlp = {.predictor_path = predictor_, .share = 1};
      const auto all = run(wanted);
      ASSERT_TRUE(all.ok()) << all.error().to_string();
      EXPECT_EQ(all->token_ids, dense->token_ids);
      ASSERT_TRUE(all->mlp);
      EXPECT_EQ(all->mlp->neurons, config_.ffn_size) << tp;
    }
  }
}

TEST_F(PredictedDecodeTest, SomeNeuronsGiveOtherTokensAndAReportOverAllRanks) {
  auto wanted = options(2);
  wanted.mlp = {.predictor_path = predictor_, .share = 0.25};
  const auto report = run(wanted);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  ASSERT_TRUE(report->mlp);
  EXPECT_EQ(report->mlp->share, 0.25);
  EXPECT_EQ(report->mlp->neurons, config_.ffn_size / 4);
  EXPECT_LT(report->mlp->bytes_per_token, report->mlp->dense_bytes_per_token);
  EXPECT_NE(report->token_ids, run(options(2))->token_ids);
}

TEST_F(PredictedDecodeTest, AFileThatDoesNotFitEndsTheRequest) {
  auto other = config_;
  other.ffn_size *= 2;
  test::write_predictor(
      predictor_, test::blank_predictor(other, 4, tensors_.at("model.embed_tokens.weight").values));
  auto wanted = options(1);
  wanted.mlp.predictor_path = predictor_;
  const auto report = run(wanted);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(report.error().message,
              ::testing::HasSubstr(predictor_ + ": tensor layers.1.expand"));
}

TEST_F(PredictedDecodeTest, AGpuComputesAllNeurons) {
  auto wanted = options(1);
  wanted.attention = AttentionMode::kProgressive;
  wanted.gpu = 0;
  wanted.mlp.predictor_path = predictor_;
  const auto report = run(wanted);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Errc::kUnsupported);
  EXPECT_THAT(report.error().message, ::testing::HasSubstr("predicted neurons on a GPU"));
}

}  // namespace
}  // namespace millrace::decode
