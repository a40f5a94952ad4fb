// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "model/weights.h"
#include "tests/support/checkpoint_writer.h"

namespace millrace::model {
namespace {

using testing::HasSubstr;

TEST(ShardShape, EveryQueryHeadFindsItsKvHeadOnItsRank) {
  const auto config = test::tiny_model_config();  // 8 query heads, 4 kv heads
  for (const int32_t size : {1, 2, 4, 8}) {
    std::vector<int> owners(static_cast<size_t>(config.num_query_heads));
    for (int32_t rank = 0; rank < size; ++rank) {
      const auto shard = shard_shape(config, {rank, size});
      ASSERT_TRUE(shard.ok()) << shard.error().to_string();
      const int32_t group = shard->num_query_heads / shard->num_kv_heads;
      for (int32_t local = 0; local < shard->num_query_heads; ++local) {
        const int32_t head = shard->first_query_head + local;
        ++owners[static_cast<size_t>(head)];
        EXPECT_EQ(shard->first_kv_head + local / group, head / config.group_size())
            << "rank " << rank << " of " << size;
      }
    }
    EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << "size " << size;
  }
}

TEST(ShardShape, OneReplicaOfEachKvHeadIsNumberedZero) {
  const auto config = test::tiny_model_config();
  for (const int32_t size : {1, 2, 4, 8}) {
    std::vector<int> stored(static_cast<size_t>(config.num_kv_heads));
    for (int32_t rank = 0; rank < size; ++rank) {
      const auto shard = *shard_shape(config, {rank, size});
      EXPECT_EQ(shard.kv_replicas, size == 8 ? 2 : 1);
      for (int32_t head = 0; shard.kv_replica == 0 && head < shard.num_kv_heads; ++head) {
        ++stored[static_cast<size_t>(shard.first_kv_head + head)];
      }
    }
    EXPECT_EQ(stored, std::vector<int>(stored.size(), 1)) << "size " << size;
  }
}

TEST(ShardShape, VocabularySplitsIntoAdjacentSlicesOfWhichTheLastIsShorter) {
  const auto config = test::tiny_model_config();  // 101 tokens
  EXPECT_EQ(shard_shape(config, {0, 4})->vocab_begin, 0);
  EXPECT_EQ(shard_shape(config, {0, 4})->vocab_end, 26);
  EXPECT_EQ(shard_shape(config, {3, 4})->vocab_begin, 78);
  EXPECT_EQ(shard_shape(config, {3, 4})->vocab_end, 101);
}

TEST(ShardShape, NamesTheFieldThatDoesNotSplitAndTheSizesThatWork) {
  struct Case {
    int32_t query_heads, kv_heads, ffn, size;
    const char* field;
    const char* sizes;
  };
  for (const auto& [query_heads, kv_heads, ffn, size, field, sizes] : std::vector<Case>{
           {8, 4, 96, 3, "num_attention_heads = 8", "work: 1, 2, 4, 8"},
           {12, 4, 96, 3, "num_key_value_heads = 4", "work: 1, 2, 4, 12"},
           {8, 4, 98, 4, "intermediate_size = 98", "work: 1, 2"},
           {8, 4, 96, 16, "num_attention_heads = 8", "work: 1, 2, 4, 8"},
       }) {
    auto config = test::tiny_model_config();
    config.num_query_heads = query_heads;
    config.num_kv_heads = kv_heads;
    config.ffn_size = ffn;
    const auto shard = shard_shape(config, {0, size});
    ASSERT_FALSE(shard.ok()) << field;
    EXPECT_EQ(shard.error().code, Errc::kUnsupported);
    EXPECT_THAT(shard.error().message, HasSubstr(field));
    EXPECT_THAT(shard.error().message, testing::EndsWith(sizes));
  }
}

TEST(ShardShape, WidthsOfExpertsAreDividedAndThatOfMlpsWhereThereAreSome) {
  auto config = test::tiny_model_config("Qwen2MoeForCausalLM");
  const auto shard = *shard_shape(config, {1, 4});
  EXPECT_EQ(shard.ffn_size, 24);
  EXPECT_EQ(shard.expert_ffn_size, 8);
  EXPECT_EQ(shard.shared_ffn_size, 12);

  config.experts.ffn_size = 30;
  EXPECT_THAT(shard_shape(config, {0, 4}).error().message, HasSubstr("moe_intermediate_size = 30"));
  config.experts.ffn_size = 32;
  config.experts.shared_ffn_size = 50;
  EXPECT_THAT(shard_shape(config, {0, 4}).error().message,
              HasSubstr("shared_expert_intermediate_size = 50"));
  config.experts.shared_ffn_size = 0;
  config.ffn_size = 98;
  EXPECT_THAT(shard_shape(config, {0, 4}).error().message, HasSubstr("intermediate_size = 98"));
  config.experts.dense_layers.clear();  // nothing has that width
  EXPECT_TRUE(shard_shape(config, {0, 4}).ok());
  EXPECT_EQ(shard_shape(config, {0, 4})->ffn_size, 0);
}

TEST(ShardShape, RefusesRanksThatDoNotExist) {
  for (const auto tp : {TensorParallel{0, 0}, TensorParallel{2, 2}, TensorParallel{-1, 2}}) {
    const auto shard = shard_shape(test::tiny_model_config(), tp);
    ASSERT_FALSE(shard.ok());
    EXPECT_EQ(shard.error().code, Errc::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::model
