// SPDX-License-Identifier: Apache-2.0
// The grid changes nothing: one rank and any TP x CP grid give the same tokens, the same KV and the
// same page scores.

#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <optional>

#include "model/load_model_config.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "tests/unit/engine/whole_cache.h"
#include "tests/unit/kernels/index/index_arrays.h"

namespace millrace::engine {
namespace {

using test::run_ranks;
using test::WholeCache;

constexpr auto kTimeout = std::chrono::seconds(60);

std::vector<int32_t> random_tokens(int64_t count, int32_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(test::random_bits(5, static_cast<uint64_t>(i)) %
                                          static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

struct Run {
  explicit Run(const model::ModelConfig& config, int64_t num_tokens) : cache(config, num_tokens) {}
  WholeCache cache;
  std::optional<PrefillResult> result;  // rank 0's
  std::string failure;
};

// Prefills `tokens` on a grid of ranks as threads.
std::unique_ptr<Run> prefill(const std::string& directory, GridShape grid,
                             const std::string& plan_text, const std::vector<int32_t>& tokens,
                             const std::vector<int64_t>& probes) {
  const auto config = *model::load_model_config(directory);
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  auto run = std::make_unique<Run>(config, num_tokens);
  std::mutex failure_mutex;
  run_ranks(grid.tp * grid.cp, [&](std::unique_ptr<comm::Communicator> world) {
    const bool root = world->rank() == 0;
    const auto fail = [&](const Error& error) {
      const std::lock_guard lock(failure_mutex);
      run->failure = error.to_string();
    };
    auto runtime = RankRuntime::create(std::move(world), test::rank_options(directory, grid));
    if (!runtime.ok()) return fail(runtime.error());
    auto& rank = **runtime;
    const auto plan = plan::make_head_plan(plan_text, config, num_tokens, 0);
    if (!plan.ok()) return fail(plan.error());
    test::WholeCacheSink sink(run->cache, rank.weights().shard, rank.engine().partition(num_tokens),
                              rank.grid().cp().rank());
    auto result = rank.engine().prefill({.token_ids = tokens,
                                         .plan = &*plan,
                                         .probe_positions = probes,
                                         .recall_by_head = true,
                                         .sink = &sink},
                                        kTimeout);
    if (!result.ok()) return fail(result.error());
    if (root) run->result = std::move(*result);
  });
  return run;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

class GridTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    test::write_random_checkpoint(config_, DType::kFloat32, 11, directory_.path());
  }

  void expect_the_same_on_any_grid(const std::string& plan) const;

  model::ModelConfig config_ = test::tiny_model_config();
  test::TempDirectory directory_;
};

// As close as the rows that they are of.
void expect_like(const HeadRecalls& some, const HeadRecalls& expected) {
  ASSERT_EQ(some.all().size(), expected.all().size());
  for (size_t i = 0; i < expected.all().size(); ++i) {
    EXPECT_EQ(some.all()[i].num_rows, expected.all()[i].num_rows);
    EXPECT_NEAR(some.all()[i].mean(), expected.all()[i].mean(), 0.1);
    EXPECT_EQ(some.all()[i].causal_pairs, expected.all()[i].causal_pairs);
    EXPECT_NEAR(some.all()[i].density(), expected.all()[i].density(), 0.1);
  }
}

void GridTest::expect_the_same_on_any_grid(const std::string& plan) const {
  // Not a multiple of 64, so that the last tile, page and stripe are partial. Long enough for 10
  // stripes, so that the snake turns twice.
  const auto tokens = random_tokens(715, config_.vocab_size);
  const std::vector<int64_t> probes = {0, 63, 64, 300, 713};
  const auto alone = prefill(directory_.path(), {1, 1}, plan, tokens, probes);
  ASSERT_TRUE(alone->result.has_value()) << alone->failure;
  // The last two have more context-parallel ranks than a rank has kv heads.
  for (const GridShape grid :
       {GridShape{2, 1}, {1, 2}, {2, 2}, {1, 4}, {4, 1}, {1, 3}, {2, 4}, {1, 5}}) {
    SCOPED_TRACE(fmt::format("tp {} cp {}", grid.tp, grid.cp));
    const auto run = prefill(directory_.path(), grid, plan, tokens, probes);
    ASSERT_TRUE(run->result.has_value()) << run->failure;
    EXPECT_EQ(run->result->first_token, alone->result->first_token);
    EXPECT_EQ(run->result->probe_token_ids, alone->result->probe_token_ids);
    // Sums over tensor-parallel ranks, and GEMMs with different numbers of rows, round differently
    // in float32. 1e-3 on values around 1 is a thousand times that, and far below the effect of a
    // wrong key.
    EXPECT_LT(largest_difference(run->cache.k(), alone->cache.k()), 1e-3);
    EXPECT_LT(largest_difference(run->cache.v(), alone->cache.v()), 1e-3);
    // Shares of a row's mass, in which differences of K and Q enter through an exponential.
    EXPECT_LT(largest_difference(run->cache.page_scores(), alone->cache.page_scores()), 1e-3);
    EXPECT_NEAR(run->result->density, alone->result->density, 2e-3);
    EXPECT_NEAR(run->result->recall.mean(), alone->result->recall.mean(), 2e-2);
    EXPECT_EQ(run->result->recall.count(), alone->result->recall.count());
    expect_like(run->result->recall_by_head, alone->result->recall_by_head);
  }
}

TEST_P(GridTest, GivesTheSameTokensKvAndPageScoresAsOneRank) {
  expect_the_same_on_any_grid(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Patterns, GridTest,
                         testing::Values("dense", "a-shape:64,128", "vertical-slash:64,128",
                                         "block-sparse:4", "elastic:64,0.2", "adaptive:0.6"),
                         [](const auto& pattern) {
                           std::string name = pattern.param.substr(0, pattern.param.find(':'));
                           std::erase(name, '-');
                           return name;
                         });

// Layers 0 and 2 have experts, including a shared one; K and V of the later layers show their
// results. If the logits of a row's second and third expert differ by less than rounding, grids may
// choose differently; for this model and prompt they differ by more.
class ExpertsGridTest : public GridTest {
 protected:
  ExpertsGridTest() {
    config_ = test::tiny_model_config("Qwen2MoeForCausalLM");
    config_.num_layers = 3;
    config_.experts.dense_layers = {1};
  }
};

TEST_P(ExpertsGridTest, ChoosesTheSameExpertsOnAnyGrid) {
  expect_the_same_on_any_grid(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Patterns, ExpertsGridTest, testing::Values("dense"));

class EngineTest : public GridTest {};

TEST_F(EngineTest, APlanOfAllPatternsGivesTheSameOnAnyGrid) {
  const auto plan = directory_.write("plan.json", R"({"default": "adaptive:0.6", "layers": [
      {"heads": {"0": "dense", "1": "a-shape:64,128", "2": "vertical-slash:64,128",
                 "4": "block-sparse:4", "6": "elastic:64,0.2"}},
      {"heads": {"1": "vertical-slash:96,64", "3": "block-sparse:3", "5": "a-shape:64,64"}}]})");
  expect_the_same_on_any_grid(plan);
}

// The plans that plan/head_pattern.cc accepts, at the ends of their ranges, because clients
// choose these numbers.
TEST_F(EngineTest, ComputesEveryPlanThatIsRead) {
  const auto tokens = random_tokens(200, config_.vocab_size);
  for (const std::string plan :
       {"a-shape:0,1", "a-shape:65536,1073741824", "vertical-slash:0,0",
        "vertical-slash:65536,65536", "block-sparse:1", "block-sparse:65536",
        "elastic:-1073741824,0", "elastic:1073741824,1", "adaptive:0.000001,0.000001,1",
        "adaptive:1,1,64"}) {
    for (const GridShape grid : {GridShape{1, 1}, {1, 2}}) {
      SCOPED_TRACE(fmt::format("{}, cp {}", plan, grid.cp));
      const auto run = prefill(directory_.path(), grid, plan, tokens, {});
      ASSERT_TRUE(run->result.has_value()) << run->failure;
      EXPECT_GT(run->result->density, 0);
      EXPECT_LE(run->result->density, 1);
    }
  }
}

// A window of 100 keys in layer 1 of 2, and in both.
class WindowTest : public EngineTest {
 protected:
  void SetUp() override { use({0, 100}); }
  void use(std::vector<int32_t> windows) {
    config_ = test::tiny_model_config("MinistralForCausalLM");
    config_.layer_windows = std::move(windows);
    test::write_random_checkpoint(config_, DType::kFloat32, 11, directory_.path());
  }
};

TEST_F(WindowTest, GivesTheSameOnAnyGridUnderAnyPlan) {
  for (const std::string plan : {"dense", "adaptive:0.6", "vertical-slash:64,128"}) {
    SCOPED_TRACE(plan);
    expect_the_same_on_any_grid(plan);
  }
}

// That of layer 0, where a plan decides; if every layer has a window, that of the windows.
TEST_F(WindowTest, DensityIsThatOfLayersWithoutAWindow) {
  const auto tokens = random_tokens(715, config_.vocab_size);
  const double causal = 715 * 716 / 2.0, windowed = 100 * 101 / 2.0 + 615 * 100;
  for (const auto& [windows, density] :
       {std::pair(std::vector<int32_t>{0, 100}, 1.0), {{100, 100}, windowed / causal}}) {
    use(windows);
    for (const GridShape grid : {GridShape{1, 1}, {2, 2}, {1, 3}}) {
      const auto run = prefill(directory_.path(), grid, "dense", tokens, {});
      ASSERT_TRUE(run->result.has_value()) << run->failure;
      EXPECT_DOUBLE_EQ(run->result->density, density);
      EXPECT_EQ(run->result->recall.mean(), 1.0);
    }
  }
}

TEST_F(WindowTest, NoPlanTakesAnythingFromAWindow) {
  use({100, 100});
  const auto tokens = random_tokens(715, config_.vocab_size);
  const auto dense = prefill(directory_.path(), {1, 2}, "dense", tokens, {});
  ASSERT_TRUE(dense->result.has_value()) << dense->failure;
  for (const std::string plan : {"a-shape:1,64", "adaptive:0.1,0.2", "block-sparse:1"}) {
    SCOPED_TRACE(plan);
    const auto run = prefill(directory_.path(), {1, 2}, plan, tokens, {});
    ASSERT_TRUE(run->result.has_value()) << run->failure;
    EXPECT_EQ(run->cache.k(), dense->cache.k());
    EXPECT_EQ(run->cache.page_scores(), dense->cache.page_scores());
    EXPECT_EQ(run->result->density, dense->result->density);
    EXPECT_EQ(run->result->recall.count(), 0);
    EXPECT_EQ(run->result->top_tokens.front().logit, dense->result->top_tokens.front().logit);
  }
}

// Pages that no window of the last 64 rows reaches have no mass from them.
TEST_F(WindowTest, PageScoresAreOfTheWindowAlone) {
  const auto tokens = random_tokens(715, config_.vocab_size);
  const auto run = prefill(directory_.path(), {1, 2}, "dense", tokens, {});
  ASSERT_TRUE(run->result.has_value()) << run->failure;
  const auto num_pages = static_cast<size_t>((715 + 63) / 64);
  const auto& scores = run->cache.page_scores();  // [layers, kv heads, pages]
  ASSERT_EQ(scores.size(), 2 * 4 * num_pages);
  constexpr size_t kFirstPage = (715 - 64 - 100 + 1) / 64;  // that row 651 sees a key of
  for (size_t head = 0; head < 8; ++head) {
    double sum = 0;
    for (size_t page = 0; page < num_pages; ++page) {
      const float score = scores[head * num_pages + page];
      sum += score;
      if (head >= 4 && page < kFirstPage) {
        EXPECT_EQ(score, 0) << head << " " << page;
      } else {
        EXPECT_GT(score, 0) << head << " " << page;
      }
    }
    EXPECT_NEAR(sum, 1, 1e-4);
  }
}

TEST_F(EngineTest, PrefillsPromptsShorterThanTheGrid) {
  for (const int64_t length : {1, 2, 63, 64, 65, 130}) {
    SCOPED_TRACE(length);
    const auto tokens = random_tokens(length, config_.vocab_size);
    const auto alone = prefill(directory_.path(), {1, 1}, "vertical-slash:64,128", tokens, {});
    const auto grid = prefill(directory_.path(), {2, 4}, "vertical-slash:64,128", tokens, {});
    ASSERT_TRUE(alone->result.has_value()) << alone->failure;
    ASSERT_TRUE(grid->result.has_value()) << grid->failure;
    EXPECT_EQ(grid->result->first_token, alone->result->first_token);
    EXPECT_LT(largest_difference(grid->cache.k(), alone->cache.k()), 1e-3);
  }
}

TEST_F(EngineTest, SparsePlanCoversLessThanDenseAndSaysSo) {
  const auto tokens = random_tokens(2048, config_.vocab_size);
  const auto dense = prefill(directory_.path(), {1, 1}, "dense", tokens, {});
  const auto sparse = prefill(directory_.path(), {1, 1}, "a-shape:64,128", tokens, {});
  ASSERT_TRUE(dense->result.has_value() && sparse->result.has_value());
  EXPECT_EQ(dense->result->density, 1.0);
  EXPECT_EQ(dense->result->recall.mean(), 1.0);
  // 64 sink keys and 128 to 191 of the window for each of 2048 rows, the last 64 rows in full.
  EXPECT_GT(sparse->result->density, 0.15);
  EXPECT_LT(sparse->result->density, 0.35);
  EXPECT_GT(sparse->result->recall.mean(), 0.0);
  EXPECT_LT(sparse->result->recall.mean(), 1.0);
}

TEST_F(EngineTest, RecallByHeadAddsUpToRecallAndDenseHeadsLoseNothing) {
  const auto tokens = random_tokens(1024, config_.vocab_size);
  const auto dense = prefill(directory_.path(), {1, 1}, "dense", tokens, {});
  const auto sparse = prefill(directory_.path(), {1, 1}, "a-shape:64,128", tokens, {});
  ASSERT_TRUE(dense->result.has_value() && sparse->result.has_value());
  for (const HeadRecall& head : dense->result->recall_by_head.all()) {
    EXPECT_EQ(head.mean(), 1.0);
    EXPECT_EQ(head.density(), 1.0);
    EXPECT_EQ(head.causal_pairs, 1024 * 1025 / 2);
  }
  HeadRecall all;
  for (const HeadRecall& head : sparse->result->recall_by_head.all()) {
    EXPECT_GT(head.num_rows, 0);
    EXPECT_LE(head.least, head.mean());
    all.add(head);
  }
  EXPECT_EQ(all.num_rows, sparse->result->recall.count());
  EXPECT_NEAR(all.density(), sparse->result->density, 1e-12);
  EXPECT_LT(all.density(), 1);
  // Both add up the same shares in double.
  EXPECT_NEAR(all.mean(), sparse->result->recall.mean(), 1e-12);
}

TEST_F(EngineTest, ATapSeesWhatEachLayersIndexWasBuiltFrom) {
  const auto tokens = random_tokens(715, config_.vocab_size);
  const auto plan = *plan::make_head_plan("adaptive:0.1,0.3", config_, 715, 0);
  std::vector<int32_t> layers;
  int num_alike = 0;
  run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    auto rank =
        RankRuntime::create(std::move(world), test::rank_options(directory_.path(), {1, 1}));
    const auto build_again = [&](const BuiltIndex& built) {
      layers.push_back(built.layer);
      std::vector<int32_t> heads(static_cast<size_t>(built.queries.num_query_heads));
      std::iota(heads.begin(), heads.end(), 0);
      const std::vector<kernels::AdaptiveRule> rules(
          heads.size(), plan::adaptive_rule(built.plan->at(built.layer, 0)));
      kernels::IndexStorage again(built.index.shape);
      (*rank)->device().build_adaptive({.q = built.queries.q,
                                        .num_query_heads = built.queries.num_query_heads,
                                        .scale = built.queries.scale,
                                        .kv = built.kv,
                                        .tiles = built.tiles,
                                        .heads = heads,
                                        .rules = rules,
                                        .index = again.view()});
      for (const int32_t head : heads) {
        num_alike += again.lists(head).blocks ==
                     copy_lists(built.index.head(head), built.index.shape.num_tiles).blocks;
      }
    };
    (void)(*rank)->engine().prefill({.token_ids = tokens, .plan = &plan, .index_tap = build_again},
                                    kTimeout);
  });
  std::vector<int32_t> all_layers(static_cast<size_t>(config_.num_layers));
  std::iota(all_layers.begin(), all_layers.end(), 0);
  EXPECT_EQ(layers, all_layers);
  EXPECT_EQ(num_alike, config_.num_layers * config_.num_query_heads);
}

// Two stripes of 64 rows: the first rank has 2,080 pairs a head. The other 8,256 - 2,080 pairs, of
// the last rows, are dealt out, four of eight heads to each rank.
TEST_F(EngineTest, SaysHowUnevenlyTheRanksShareAttention) {
  const auto tokens = random_tokens(128, config_.vocab_size);
  const auto run = prefill(directory_.path(), {1, 2}, "dense", tokens, {});
  ASSERT_TRUE(run->result.has_value()) << run->failure;
  EXPECT_DOUBLE_EQ(run->result->imbalance.mean, (2080.0 + 6176.0 / 2) / 4128.0);
  EXPECT_DOUBLE_EQ(run->result->imbalance.worst, (2080.0 + 6176.0 / 2) / 4128.0);
  EXPECT_EQ(run->result->rank_phases.size(), 2u);
}

// If the rank that owns the last 64 rows computed them, it would have 1.63 times the mean.
TEST_F(EngineTest, RanksShareSparseAttentionEvenly) {
  const auto tokens = random_tokens(4096, config_.vocab_size);
  const auto run = prefill(directory_.path(), {1, 4}, "a-shape:64,128", tokens, {});
  ASSERT_TRUE(run->result.has_value()) << run->failure;
  EXPECT_LT(run->result->imbalance.worst, 1.05);
}

TEST_F(EngineTest, CoversTheSamePairsOnAnyGrid) {
  const auto tokens = random_tokens(715, config_.vocab_size);
  for (const std::string plan : {"dense", "a-shape:64,128"}) {
    const auto alone = prefill(directory_.path(), {1, 1}, plan, tokens, {});
    ASSERT_TRUE(alone->result.has_value()) << alone->failure;
    for (const GridShape grid : {GridShape{1, 2}, {1, 3}, {1, 4}, {2, 2}, {2, 3}}) {
      SCOPED_TRACE(fmt::format("{}, tp {} cp {}", plan, grid.tp, grid.cp));
      const auto run = prefill(directory_.path(), grid, plan, tokens, {});
      ASSERT_TRUE(run->result.has_value()) << run->failure;
      EXPECT_DOUBLE_EQ(run->result->density, alone->result->density);
    }
  }
}

TEST(EngineShapes, AHeadDimensionThatTheDeviceDoesNotTakeIsRefusedAtTheStart) {
  test::TempDirectory directory;
  auto config = test::tiny_model_config();
  config.head_dim = 24;
  test::write_random_checkpoint(config, DType::kFloat32, 11, directory.path());
  std::mutex mutex;
  std::vector<std::string> outcomes;
  run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    const auto runtime =
        RankRuntime::create(std::move(world), test::rank_options(directory.path(), {1, 2}));
    const std::lock_guard lock(mutex);
    outcomes.push_back(runtime.ok() ? "ok" : runtime.error().to_string());
  });
  ASSERT_EQ(outcomes.size(), 2u);
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.starts_with("unsupported: rank 0: " + directory.path() +
                                    "/config.json: head_dim = 24: cpu"))
        << outcome;
    EXPECT_NE(outcome.find("supported: multiples of 16 up to 256"), std::string::npos) << outcome;
  }
}

TEST_F(EngineTest, AnErrorOnOneRankEndsTheRequestOnAllAndLeavesThemUsable) {
  const auto tokens = random_tokens(200, config_.vocab_size);
  class FailingSink final : public KvSink {
   public:
    Result<void> write_layer(const LayerKv& kv) override {
      if (kv.layer == 1) return error(Errc::kIo, "disk full");
      return {};
    }
  };
  std::mutex mutex;
  std::vector<std::string> outcomes;
  int later_successes = 0;
  run_ranks(4, [&](std::unique_ptr<comm::Communicator> world) {
    const int world_rank = world->rank();
    auto runtime =
        RankRuntime::create(std::move(world), test::rank_options(directory_.path(), {2, 2}));
    const plan::HeadPlan plan(config_.num_layers, config_.num_query_heads, {});
    FailingSink sink;
    PrefillTask task{.token_ids = tokens, .plan = &plan, .sink = world_rank == 3 ? &sink : nullptr};
    const auto failed = (*runtime)->engine().prefill(task, kTimeout);
    task.sink = nullptr;
    const auto again = (*runtime)->engine().prefill(task, kTimeout);
    const std::lock_guard lock(mutex);
    outcomes.push_back(failed.ok() ? "ok" : failed.error().message);
    later_successes += again.ok() ? 1 : 0;
  });
  EXPECT_EQ(outcomes, std::vector<std::string>(4, "rank 3: disk full"));
  EXPECT_EQ(later_successes, 4);
}

TEST_F(EngineTest, ALogitThatIsNoNumberFailsTheRequestOnAllRanksAndLeavesThemUsable) {
  const auto tokens = random_tokens(200, config_.vocab_size);
  // Far more rows than are computed at a time.
  std::vector<int64_t> probes(tokens.size() - 1);
  std::iota(probes.begin(), probes.end(), 0);
  auto tensors = test::random_tensors(config_, 11);
  auto& lm_head = tensors.find("lm_head.weight")->second;
  lm_head.values[7 * static_cast<size_t>(config_.hidden_size)] = std::nanf("");
  test::write_checkpoint(config_, tensors, DType::kFloat32, directory_.path(), 1);
  for (const GridShape grid : {GridShape{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    std::mutex mutex;
    std::vector<std::string> outcomes;
    run_ranks(grid.tp * grid.cp, [&](std::unique_ptr<comm::Communicator> world) {
      auto runtime =
          RankRuntime::create(std::move(world), test::rank_options(directory_.path(), grid));
      const plan::HeadPlan plan(config_.num_layers, config_.num_query_heads, {});
      for (int time = 0; time < 2; ++time) {
        const auto failed = (*runtime)->engine().prefill(
            {.token_ids = tokens, .plan = &plan, .probe_positions = probes}, kTimeout);
        const std::lock_guard lock(mutex);
        outcomes.push_back(failed.ok() ? "ok" : failed.error().to_string());
      }
    });
    ASSERT_EQ(outcomes.size(), static_cast<size_t>(2 * grid.tp * grid.cp));
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome.starts_with("internal: ")) << outcome;
      EXPECT_NE(outcome.find("the logit of token 7 after position 0 is not finite: nan"),
                std::string::npos)
          << outcome;
    }
  }
}

TEST_F(EngineTest, CancellationAtALayerBoundaryStopsBeforeTheNextLayer) {
  const auto tokens = random_tokens(200, config_.vocab_size);
  std::atomic<int> layers_seen = 0;
  std::mutex mutex;
  std::vector<Errc> codes;
  run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    auto runtime =
        RankRuntime::create(std::move(world), test::rank_options(directory_.path(), {1, 2}));
    const plan::HeadPlan plan(config_.num_layers, config_.num_query_heads, {});
    const auto result =
        (*runtime)->engine().prefill({.token_ids = tokens,
                                      .plan = &plan,
                                      .at_boundary = [&](const LayerReport&) -> Result<void> {
                                        ++layers_seen;
                                        return error(Errc::kCancelled, "no longer wanted");
                                      }},
                                     kTimeout);
    const std::lock_guard lock(mutex);
    codes.push_back(result.error().code);
  });
  EXPECT_EQ(layers_seen, 2);  // one layer, two ranks
  EXPECT_EQ(codes, (std::vector<Errc>{Errc::kCancelled, Errc::kCancelled}));
}

}  // namespace
}  // namespace millrace::engine
