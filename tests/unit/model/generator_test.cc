// SPDX-License-Identifier: Apache-2.0
#include "model/generator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/local/local_group.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace millrace::model {
namespace {

class GeneratorTest : public ::testing::Test {
 protected:
  // Five tokens after a first one, with nothing in the cache before it.
  Result<std::vector<int32_t>> generate(const std::function<Deadline()>& next_deadline,
                                        bool ignore_eos = false) {
    const test::TempDirectory model;
    test::write_random_checkpoint(config_, DType::kFloat32, 3, model.path());
    const auto device = kernels::make_cpu_device({.num_threads = 1});
    MR_ASSIGN_OR_RETURN(const auto weights,
                        load_model_weights(model.path(), {}, DType::kFloat32, *device, 1));
    const auto tp = std::move(comm::LocalGroup::create(1).front());
    const auto cp = std::move(comm::LocalGroup::create(1).front());
    MR_ASSIGN_OR_RETURN(auto generator, Generator::create(*device, *weights, *tp, *cp, 6));
    const kernels::KvSlab empty{.dtype = DType::kFloat32,
                                .num_kv_heads = weights->shard.num_kv_heads,
                                .head_dim = weights->config.head_dim};
    const std::vector slabs(static_cast<size_t>(weights->config.num_layers), empty);
    return generator.generate(
        {.prompt = slabs, .first_token = 7, .max_tokens = 6, .ignore_eos = ignore_eos},
        next_deadline);
  }

  static Deadline ample() { return Deadline::after(std::chrono::seconds(60)); }

  ModelConfig config_ = test::tiny_model_config();
};

TEST_F(GeneratorTest, ATokenThatEndsTheTextIsTheLast) {
  const auto all = generate(ample);
  ASSERT_TRUE(all.ok()) << all.error().to_string();
  ASSERT_EQ(all->size(), 6u);
  EXPECT_EQ(finish_reason(*all, config_, false), "length");
  for (size_t last = 0; last < all->size(); ++last) {
    SCOPED_TRACE(last);
    const std::vector expected(all->begin(), std::find(all->begin(), all->end(), (*all)[last]) + 1);
    config_.eos_token_ids = {(*all)[last], 100};
    EXPECT_EQ(*generate(ample), expected);
    EXPECT_EQ(finish_reason(expected, config_, false), "stop");
    EXPECT_EQ(*generate(ample, /*ignore_eos=*/true), *all);
    EXPECT_EQ(finish_reason(*all, config_, true), "length");
  }
}

TEST_F(GeneratorTest, EachTokenHasADeadlineOfItsOwn) {
  int num_deadlines = 0;
  const auto tokens = generate([&] {
    ++num_deadlines;
    return Deadline::after(std::chrono::seconds(60));
  });
  ASSERT_TRUE(tokens.ok()) << tokens.error().to_string();
  EXPECT_EQ(tokens->size(), 6u);
  EXPECT_EQ(num_deadlines, 5);
}

TEST_F(GeneratorTest, ATokenWhoseDeadlineHasPassedEndsIt) {
  int num_deadlines = 0;
  const auto tokens = generate([&] {
    const std::chrono::seconds left(++num_deadlines < 3 ? 60 : 0);
    return Deadline::after(left);
  });
  ASSERT_FALSE(tokens.ok());
  EXPECT_EQ(tokens.error().code, Errc::kDeadlineExceeded);
  EXPECT_EQ(tokens.error().message, "generation stopped after 3 of 6 tokens");
}

}  // namespace
}  // namespace millrace::model
