// SPDX-License-Identifier: Apache-2.0
#include "engine/capacity.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "kernels/cpu/cpu_device.h"
#include "kvstore/kv_store.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/far_device.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "worker/staging/store_sink.h"

namespace millrace::engine {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr int64_t kTokens = 3000;

class CapacityTest : public testing::TestWithParam<std::tuple<std::string, int, int>> {};

// The peak device memory of a prompt on rank 0, and the prediction.
struct Use {
  int64_t peak_bytes = 0;
  int64_t foretold_bytes = 0;
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(*result);
}

Use use_of_prompt(const std::string& model, const std::string& plan_text, GridShape shape,
                  bool float8_kv = false) {
  Use use;
  test::run_ranks(shape.tp * shape.cp, [&](std::unique_ptr<comm::Communicator> world) {
    const bool root = world->rank() == 0;
    const auto grid = must(RankGrid::create(std::move(world), shape, Deadline::after(kTimeout)));
    test::FarDevice device(kernels::make_cpu_device({.num_threads = 1}));
    const auto weights =
        must(model::load_model_weights(model, grid.tensor_parallel(), DType::kFloat32, device));
    auto groups =
        must(make_device_groups(device, grid, /*own_gpu=*/false, Deadline::after(kTimeout)));
    auto engine =
        must(Engine::create(device, *weights, grid, std::move(groups), {.row_tile_tokens = 64}));
    const auto& config = weights->config;
    const kvstore::KvGeometry geometry{
        .num_layers = config.num_layers,
        .num_kv_heads = weights->shard.num_kv_heads,
        .first_kv_head = weights->shard.first_kv_head,
        .head_dim = config.head_dim,
        .dtype = DType::kFloat32,
        .float8 = float8_kv ? std::make_shared<const KvScales>(config.num_layers) : nullptr};
    const auto store = must(kvstore::make_kv_store(
        {.host_bytes = int64_t{1} << 30, .geometry = geometry}, Clock::steady()));
    const auto writer =
        must(worker::PageWriter::create(device, *store, geometry, /*num_threads=*/1));
    const auto pages = engine.partition(kTokens).pages(grid.cp().rank());
    MR_CHECK(store->begin_request("r", kTokens, pages).ok(), "no room");
    const std::vector<int32_t> tokens(kTokens, 7);
    const auto plan = must(plan::make_head_plan(plan_text, config, kTokens, 0));
    const int64_t before = device.allocated_bytes();
    device.reset_peak();
    {
      worker::StoreSink sink(device, *store, *writer, "r", pages);
      must(engine.prefill({.token_ids = tokens, .plan = &plan, .sink = &sink}, kTimeout));
    }
    if (!root) return;
    use.peak_bytes = device.peak_bytes() - before;
    use.foretold_bytes = prefill_bytes({.config = config,
                                        .shard = weights->shard,
                                        .grid = shape,
                                        .compute_dtype = DType::kFloat32,
                                        .stages_layers = true,
                                        .float8_kv = float8_kv},
                                       kTokens);
  });
  return use;
}

void expect_foretold(const Use& use) {
  // Most of what does not grow with the prompt (statistics of the last rows, one row tile to sum)
  // is not predicted: 100 KB at this size.
  EXPECT_LE(use.peak_bytes, use.foretold_bytes + 100'000);
  // Probe sums and block lists are predicted for every plan; no plan needs both.
  EXPECT_GE(use.peak_bytes, use.foretold_bytes / 2);
}

TEST_P(CapacityTest, APromptTakesNoMoreThanForetoldAndNotMuchLess) {
  const auto& [plan, tp, cp] = GetParam();
  test::TempDirectory model;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model.path());
  expect_foretold(use_of_prompt(model.path(), plan, {tp, cp}));
}

TEST(Capacity, APromptTakesNoMoreWhereItsCacheIsInEightBitFloats) {
  test::TempDirectory model;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model.path());
  for (const GridShape grid : {GridShape{1, 1}, {1, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} cp {}", grid.tp, grid.cp));
    const auto use = use_of_prompt(model.path(), "adaptive:0.6", grid, /*float8_kv=*/true);
    expect_foretold(use);
    const auto wide = use_of_prompt(model.path(), "adaptive:0.6", grid);
    EXPECT_LT(use.foretold_bytes, wide.foretold_bytes);
  }
}

TEST(Capacity, APromptTakesNoMoreForExperts) {
  test::TempDirectory model;
  test::write_random_checkpoint(test::tiny_model_config("MixtralForCausalLM"), DType::kFloat32, 3,
                                model.path());
  for (const GridShape grid : {GridShape{1, 1}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} cp {}", grid.tp, grid.cp));
    expect_foretold(use_of_prompt(model.path(), "adaptive:0.6", grid));
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, CapacityTest,
                         testing::Values(std::tuple("vertical-slash:64,128", 1, 1),
                                         std::tuple("adaptive:0.6", 1, 1),
                                         std::tuple("vertical-slash:64,128", 1, 2),
                                         std::tuple("adaptive:0.6", 2, 2)));

TEST(Capacity, TheLongestPromptIsTheLastThatFits) {
  const auto config = test::tiny_model_config();
  const auto shard = *model::shard_shape(config, {});
  const RankLayout layout{.config = config, .shard = shard};
  const int64_t budget = 50 << 20;
  const int64_t longest = max_prompt_tokens(layout, budget);
  ASSERT_LT(longest, config.max_position_embeddings);
  EXPECT_LE(prefill_bytes(layout, longest), budget);
  EXPECT_GT(prefill_bytes(layout, longest + 1), budget);
  EXPECT_EQ(max_prompt_tokens(layout, 0), 0);
  EXPECT_EQ(max_prompt_tokens(layout, int64_t{1} << 60), config.max_position_embeddings);
}

// What fits the budget, of prompts of at most `most_tokens`: alone, on a lane, and the longest one
// that fits beside each of some others.
std::vector<int64_t> what_fits(const RankLayout& group, const RankLayout& lane, int64_t budget,
                               int64_t most_tokens) {
  std::vector<int64_t> fits;
  const auto add = [&](const RankLayout& layout, int64_t bytes) {
    fits.push_back(std::min(most_tokens, max_prompt_tokens(layout, bytes)));
  };
  add(group, budget);
  add(lane, budget);
  for (int64_t other = 64; other <= fits.front(); other *= 2) {
    add(group, budget - prefill_bytes(group, other));
  }
  return fits;
}

TEST(Capacity, WhateverFitsTheBudgetFitsBesideWhatIsSpare) {
  auto config = test::tiny_model_config();
  config.max_position_embeddings = 100'000;
  config.hidden_size = 4096;  // so that most of a prompt's memory is divided by cp
  const auto shard = *model::shard_shape(config, {});
  const RankLayout group{.config = config, .shard = shard, .grid = {.tp = 1, .cp = 4}};
  const RankLayout lane{.config = config, .shard = shard};
  ASSERT_GT(prefill_bytes(lane, 20'000), 2 * prefill_bytes(group, 20'000));
  for (const int64_t budget :
       {int64_t{0}, int64_t{10} << 20, int64_t{50} << 20, int64_t{200} << 20, int64_t{1} << 32}) {
    for (const int64_t most_tokens : {1000, 20'000, 100'000}) {
      SCOPED_TRACE(fmt::format("{} of budget, {} tokens", budget, most_tokens));
      const int64_t spare = spare_bytes(group, &lane, budget, most_tokens);
      EXPECT_GE(spare, 0);
      EXPECT_EQ(what_fits(group, lane, budget - spare, most_tokens),
                what_fits(group, lane, budget, most_tokens));
    }
  }
  // A group of its own: two of its longest prompts, and all else is spare.
  const int64_t most = int64_t{1} << 32;
  EXPECT_EQ(spare_bytes(group, nullptr, most, 1000), most - 2 * prefill_bytes(group, 1000));
  EXPECT_EQ(spare_bytes(group, nullptr, most, 1'000'000), most - 2 * prefill_bytes(group, 100'000));
}

TEST(Capacity, KeysThatTheDevicesScratchDoesNotCountAreThePrompts) {
  const auto config = test::tiny_model_config();
  const auto shard = *model::shard_shape(config, {});
  RankLayout layout{.config = config, .shard = shard};
  const int64_t without = prefill_bytes(layout, kTokens);
  layout.scratch_key_bytes = kTokens * config.head_dim;
  EXPECT_EQ(prefill_bytes(layout, kTokens), without);
  layout.scratch_key_bytes -= 1000;
  EXPECT_EQ(prefill_bytes(layout, kTokens), without + 1050);  // with a twentieth for their pages
}

TEST(Capacity, WhatAPromptOfAnyLengthTakesIsTheSumOfItsParts) {
  auto config = test::tiny_model_config();
  config.hidden_size = 1000;
  const auto shard = *model::shard_shape(config, {});
  const RankLayout alone{.config = config, .shard = shard};
  const FixedMemory memory{
      .scratch_bytes = 1 << 20, .row_tile_tokens = 10, .logit_columns = 500, .nccl = true};
  const int64_t one_rank = (1 << 20) + 64 * (1000 + 500) * 4;
  EXPECT_EQ(fixed_bytes(alone, memory), one_rank);
  // The tile that is summed, and buffers of the groups over tp and over cp.
  const RankLayout grid{.config = config, .shard = shard, .grid = {.tp = 2, .cp = 2}};
  EXPECT_EQ(fixed_bytes(grid, memory), one_rank + 10 * 1000 * 4 + 2 * (int64_t{256} << 20));
  FixedMemory by_host = memory;
  by_host.nccl = false;
  EXPECT_EQ(fixed_bytes(grid, by_host), one_rank + 10 * 1000 * 4);
}

TEST(StoreCapacity, TheLongestPromptFillsARanksStoreAndOneTokenMoreDoesNotFit) {
  auto config = test::tiny_model_config();
  const model::ShardShape shard{.num_kv_heads = 2};
  const int64_t rows = config.num_layers * int64_t{shard.num_kv_heads};
  for (const int cp : {1, 3, 8}) {
    const RankLayout layout{.config = config, .shard = shard, .grid = {.tp = 2, .cp = cp}};
    for (const int64_t num_slots : {rows - 1, rows, 10 * rows, 37 * rows + 1}) {
      SCOPED_TRACE(fmt::format("cp {}, {} slots", cp, num_slots));
      const auto max_pages = [&](int64_t num_tokens) {
        const Partition partition(num_tokens, cp, Partition::default_stripe_tokens(num_tokens));
        int64_t most = 0;
        for (int rank = 0; rank < cp; ++rank)
          most = std::max(most, std::ssize(partition.pages(rank)));
        return most * rows;
      };
      const int64_t tokens = max_stored_tokens(layout, num_slots);
      EXPECT_LE(max_pages(tokens), num_slots);
      EXPECT_GT(max_pages(tokens + 1), num_slots);
    }
  }
}

}  // namespace
}  // namespace millrace::engine
