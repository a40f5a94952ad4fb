// SPDX-License-Identifier: Apache-2.0
// A last layer that computes only what is asked of it gives the same results as one that computes
// all: K and V of every token, page scores, tokens and log probabilities. If each head's recall is
// asked for, it computes all.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/load_model_config.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "tests/unit/engine/whole_cache.h"

namespace millrace::engine {
namespace {

using test::WholeCache;

constexpr auto kTimeout = std::chrono::seconds(60);
// Not a multiple of 64 or of the 128 rows of a product's row tile: the last tile of each is
// partial, and the dense rows are in two tiles.
constexpr int64_t kTokens = 715;
constexpr GridShape kGrids[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};

struct Prefilled {
  explicit Prefilled(const model::ModelConfig& config) : cache(config, kTokens) {}
  WholeCache cache;
  std::optional<PrefillResult> result;  // rank 0's
  std::vector<double> densities;        // by layer
};

// Float32 sums of 64 to 96 products in another order: some units in the last place of values around
// 1, which attention sums again.
constexpr double kRounding = 2e-5;

void expect_near(const std::vector<float>& some, const std::vector<float>& expected) {
  ASSERT_EQ(some.size(), expected.size());
  for (size_t i = 0; i < some.size(); ++i) ASSERT_NEAR(some[i], expected[i], kRounding) << i;
}

class LastLayerTest : public testing::TestWithParam<std::string> {
 protected:
  LastLayerTest() { use(test::tiny_model_config()); }

  void use(const model::ModelConfig& config) {
    config_ = config;
    test::write_random_checkpoint(config_, DType::kFloat32, 21, directory_.path());
  }

  std::unique_ptr<Prefilled> prefill(GridShape grid, const std::string& plan_text,
                                     const std::vector<int64_t>& probes, bool whole) const {
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < kTokens; ++i) {
      tokens.push_back(static_cast<int32_t>(test::random_bits(5, static_cast<uint64_t>(i)) %
                                            static_cast<uint64_t>(config_.vocab_size)));
    }
    for (const int64_t probe : probes) targets.push_back(tokens[static_cast<size_t>(probe) + 1]);
    auto run = std::make_unique<Prefilled>(config_);
    test::run_ranks(grid.tp * grid.cp, [&](std::unique_ptr<comm::Communicator> world) {
      const bool root = world->rank() == 0;
      auto runtime =
          RankRuntime::create(std::move(world), test::rank_options(directory_.path(), grid));
      MR_CHECK(runtime.ok(), "{}", runtime.error().to_string());
      RankRuntime& rank = **runtime;
      const auto plan = plan::make_head_plan(plan_text, config_, kTokens, 0);
      MR_CHECK(plan.ok(), "{}", plan.error().to_string());
      test::WholeCacheSink sink(run->cache, rank.weights().shard, rank.engine().partition(kTokens),
                                rank.grid().cp().rank());
      const auto note_density = [&](const LayerReport& report) {
        if (root) run->densities.push_back(report.density);
        return Result<void>();
      };
      auto result = rank.engine().prefill({.token_ids = tokens,
                                           .plan = &*plan,
                                           .probe_positions = probes,
                                           .probe_target_ids = targets,
                                           .recall_by_head = whole,
                                           .sink = &sink,
                                           .at_boundary = note_density},
                                          kTimeout);
      MR_CHECK(result.ok(), "{}", result.error().to_string());
      if (root) run->result = std::move(*result);
    });
    return run;
  }

  void expect_what_the_whole_layer_gives(const std::string& plan,
                                         const std::vector<int64_t>& probes) const {
    for (const GridShape grid : kGrids) {
      SCOPED_TRACE(fmt::format("{}, tp {} cp {}", plan, grid.tp, grid.cp));
      const auto whole = prefill(grid, plan, probes, /*whole=*/true);
      const auto asked = prefill(grid, plan, probes, /*whole=*/false);
      expect_near(asked->cache.k(), whole->cache.k());
      expect_near(asked->cache.v(), whole->cache.v());
      expect_near(asked->cache.page_scores(), whole->cache.page_scores());
      EXPECT_EQ(asked->result->first_token, whole->result->first_token);
      EXPECT_EQ(asked->result->probe_token_ids, whole->result->probe_token_ids);
      for (size_t i = 0; i < whole->result->top_tokens.size(); ++i) {
        EXPECT_NEAR(asked->result->top_tokens[i].logit, whole->result->top_tokens[i].logit,
                    10 * kRounding);
      }
      ASSERT_EQ(asked->result->probe_logprobs.size(), probes.size());
      for (size_t i = 0; i < probes.size(); ++i) {
        EXPECT_NEAR(asked->result->probe_logprobs[i], whole->result->probe_logprobs[i],
                    10 * kRounding);
      }
    }
  }

  model::ModelConfig config_;
  test::TempDirectory directory_;
};

// Includes rows of the first tile, of one in which a product's row tile ends, and of the dense
// ones.
const std::vector<int64_t> kProbes = {0, 63, 127, 128, 300, 652, 713};

TEST_P(LastLayerTest, GivesWhatAllRowsGive) {
  expect_what_the_whole_layer_gives(GetParam(), {});
}

TEST_P(LastLayerTest, GivesWhatAllRowsGiveAtProbes) {
  expect_what_the_whole_layer_gives(GetParam(), kProbes);
}

INSTANTIATE_TEST_SUITE_P(Patterns, LastLayerTest,
                         testing::Values("dense", "a-shape:64,128", "vertical-slash:64,128",
                                         "block-sparse:4", "elastic:64,0.2", "adaptive:0.6"),
                         [](const auto& pattern) {
                           std::string name = pattern.param.substr(0, pattern.param.find(':'));
                           std::erase(name, '-');
                           return name;
                         });

// Biases of Q, K and V; head norms; one tensor for all three; a window in the last layer.
TEST_F(LastLayerTest, ProjectsWhatTheArchitectureAsksFor) {
  for (const std::string architecture :
       {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM", "Qwen2MoeForCausalLM"}) {
    SCOPED_TRACE(architecture);
    use(test::tiny_model_config(architecture));
    expect_what_the_whole_layer_gives("adaptive:0.6", {300});
  }
}

TEST_F(LastLayerTest, HasItsWindow) {
  auto config = test::tiny_model_config("MinistralForCausalLM");
  for (const std::vector<int32_t>& windows : {std::vector{0, 100}, {100, 0}}) {
    config.layer_windows = windows;
    use(config);
    expect_what_the_whole_layer_gives("vertical-slash:64,128", {});
    expect_what_the_whole_layer_gives("vertical-slash:64,128", {300});
  }
}

// The only one, and the one that all lists would be left from.
TEST_F(LastLayerTest, MayBeTheFirst) {
  auto config = test::tiny_model_config();
  config.num_layers = 1;
  use(config);
  for (const std::string plan : {"dense", "adaptive:0.6", "vertical-slash:64,128"}) {
    expect_what_the_whole_layer_gives(plan, {});
    expect_what_the_whole_layer_gives(plan, {300});
  }
}

TEST_F(LastLayerTest, ReportsTheDensityAndRecallOfTheRowsThatAttend) {
  for (const GridShape grid : kGrids) {
    SCOPED_TRACE(fmt::format("tp {} cp {}", grid.tp, grid.cp));
    const auto whole = prefill(grid, "a-shape:64,64", {}, /*whole=*/true);
    const auto asked = prefill(grid, "a-shape:64,64", {}, /*whole=*/false);
    const auto probed = prefill(grid, "a-shape:64,64", kProbes, /*whole=*/false);
    EXPECT_EQ(asked->densities.front(), whole->densities.front());
    EXPECT_LT(whole->densities.back(), 0.6);
    EXPECT_EQ(asked->densities.back(), 1);  // the dense rows alone
    EXPECT_LT(probed->densities.back(), 1);
    // Weighted by pairs: the last layer only has the pairs of rows 640 to 714.
    const double causal = 715 * 716 / 2.0, last = causal - 640 * 641 / 2.0;
    EXPECT_DOUBLE_EQ(asked->result->density,
                     (whole->densities.front() * causal + last) / (causal + last));
    // One row of each of 7 tiles is measured, in one of two layers. Tile 4 is the one of them that
    // has probes.
    EXPECT_EQ(whole->result->recall.count(), 2 * 7 * 8);
    EXPECT_EQ(asked->result->recall.count(), 7 * 8);
    EXPECT_EQ(probed->result->recall.count(), (7 + 1) * 8);
    EXPECT_EQ(asked->result->imbalance.worst_layer, 0);
  }
}

}  // namespace
}  // namespace millrace::engine
