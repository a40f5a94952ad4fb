// SPDX-License-Identifier: Apache-2.0
// Prompts with a common beginning. Under every plan that is called prefix-pure, their first pages
// have the same K and V whatever follows. And a prompt whose first pages come from an earlier one
// has the same K, V, scores and tokens as if it had been computed whole.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "kernels/index/tiling.h"
#include "model/load_model_config.h"
#include "plan/prefix_pure.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "tests/unit/engine/whole_cache.h"

namespace millrace::engine {
namespace {

using test::WholeCache;

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr int64_t kTileTokens = 128;  // test::rank_options
constexpr GridShape kGrids[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}};

// Serves pages of an earlier prompt's cache.
class CacheSource final : public PrefixSource {
 public:
  CacheSource(const WholeCache& cache, const model::ShardShape& shard, std::vector<int64_t> pages)
      : cache_(cache), shard_(shard), pages_(std::move(pages)) {}

  Result<void> load(int32_t layer, int64_t first, int64_t count, const KvPlace& to) override {
    if (layer == fails_at_) return error(Errc::kCorrupt, "a damaged page");
    for (int32_t head = 0; head < shard_.num_kv_heads; ++head) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t token = 64 * pages_[static_cast<size_t>(first + i)];
        const int64_t row = head * to.stride + 64 * i;
        put(to.k, row, cache_.k_rows(layer, shard_.first_kv_head + head, token, 64));
        put(to.v, row, cache_.v_rows(layer, shard_.first_kv_head + head, token, 64));
      }
    }
    return {};
  }

  void fail_at(int32_t layer) { fails_at_ = layer; }

 private:
  void put(void* rows, int64_t row, std::span<const std::byte> bytes) const {
    std::memcpy(static_cast<std::byte*>(rows) + row * cache_.row_bytes(), bytes.data(),
                bytes.size());
  }

  const WholeCache& cache_;
  model::ShardShape shard_;
  std::vector<int64_t> pages_;
  int32_t fails_at_ = -1;
};

struct Prefilled {
  Prefilled(const model::ModelConfig& config, int64_t num_tokens, DType dtype)
      : cache(config, num_tokens, dtype) {}
  WholeCache cache;
  std::optional<PrefillResult> result;  // rank 0's
  std::vector<Error> failures;
};

struct Cached {
  const WholeCache* cache = nullptr;
  PromptPrefix prefix;
  int failing_rank = -1;
};

class PrefixTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    model_ = directory_.path();
    test::write_random_checkpoint(config_, DType::kFloat32, 12, model_);
  }

  // The first kShared tokens are always the same, the others never.
  static constexpr int64_t kShared = 1024;
  std::vector<int32_t> prompt(int64_t num_tokens) const {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < num_tokens; ++i) {
      const uint64_t seed = i < kShared ? 5 : static_cast<uint64_t>(num_tokens);
      tokens.push_back(static_cast<int32_t>(test::random_bits(seed, static_cast<uint64_t>(i)) %
                                            static_cast<uint64_t>(config_.vocab_size)));
    }
    return tokens;
  }

  std::unique_ptr<Prefilled> prefill(GridShape grid, const std::string& plan_text,
                                     const std::vector<int32_t>& tokens, const Cached& cached = {},
                                     DType dtype = DType::kFloat32) const {
    const auto num_tokens = std::ssize(tokens);
    auto run = std::make_unique<Prefilled>(config_, num_tokens, dtype);
    std::mutex mutex;
    test::run_ranks(grid.tp * grid.cp, [&](std::unique_ptr<comm::Communicator> world) {
      const int number = world->rank();
      auto options = test::rank_options(model_, grid);
      options.compute_dtype = dtype;
      auto runtime = RankRuntime::create(std::move(world), options);
      MR_CHECK(runtime.ok(), "{}", runtime.error().to_string());
      RankRuntime& rank = **runtime;
      const auto plan = plan::make_head_plan(plan_text, config_, num_tokens, 0);
      MR_CHECK(plan.ok(), "{}", plan.error().to_string());
      const int cp_rank = rank.grid().cp().rank();
      test::WholeCacheSink sink(run->cache, rank.weights().shard,
                                rank.engine().partition(num_tokens, cached.prefix.num_tokens()),
                                cp_rank);
      std::optional<CacheSource> source;
      if (cached.cache != nullptr) {
        source.emplace(*cached.cache, rank.weights().shard, cached.prefix.pages(cp_rank));
        if (number == cached.failing_rank) source->fail_at(1);
      }
      auto result = rank.engine().prefill({.token_ids = tokens,
                                           .plan = &*plan,
                                           .sink = &sink,
                                           .prefix = cached.prefix,
                                           .prefix_source = source ? &*source : nullptr},
                                          kTimeout);
      const std::lock_guard lock(mutex);
      if (!result.ok()) {
        run->failures.push_back(result.error());
      } else if (number == 0) {
        run->result = std::move(*result);
      }
    });
    return run;
  }

  // Bytes of K and V that differ in tokens [first, end), of all layers and heads.
  int64_t num_different(const WholeCache& a, const WholeCache& b, int64_t first,
                        int64_t end) const {
    int64_t different = 0;
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      for (int32_t head = 0; head < config_.num_kv_heads; ++head) {
        for (const auto rows : {&WholeCache::k_rows, &WholeCache::v_rows}) {
          const auto of_a = (a.*rows)(layer, head, first, end - first);
          const auto of_b = (b.*rows)(layer, head, first, end - first);
          for (size_t i = 0; i < of_a.size(); ++i) different += of_a[i] != of_b[i] ? 1 : 0;
        }
      }
    }
    return different;
  }

  // The largest difference of the same values, as floats.
  double largest_difference(const WholeCache& a, const WholeCache& b, int64_t first, int64_t end,
                            DType dtype) const {
    double largest = 0;
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      for (int32_t head = 0; head < config_.num_kv_heads; ++head) {
        for (const auto rows : {&WholeCache::k_rows, &WholeCache::v_rows}) {
          const auto of_a = floats((a.*rows)(layer, head, first, end - first), dtype);
          const auto of_b = floats((b.*rows)(layer, head, first, end - first), dtype);
          for (size_t i = 0; i < of_a.size(); ++i) {
            largest = std::max(largest, std::abs(double{of_a[i]} - of_b[i]));
          }
        }
      }
    }
    return largest;
  }

  model::ModelConfig config_ = test::tiny_model_config();
  std::string model_;
  test::TempDirectory directory_;

 private:
  static std::vector<float> floats(std::span<const std::byte> bytes, DType dtype) {
    if (dtype == DType::kBFloat16) {
      std::vector<BFloat16> values(bytes.size() / sizeof(BFloat16));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      return test::widen(values);
    }
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

std::string name_of(GridShape grid) {
  return fmt::format("tp {} cp {}", grid.tp, grid.cp);
}

// Ranks hold other pages than the partition would give them.
PromptPrefix turned_prefix(int64_t num_pages, GridShape grid) {
  PromptPrefix prefix;
  for (int64_t page = 0; page < num_pages; ++page) {
    prefix.owners.push_back(grid.cp - 1 - static_cast<int>(page / 2 % grid.cp));
  }
  return prefix;
}

void expect_same_answer(const PrefillResult& some, const PrefillResult& expected,
                        double tolerance) {
  EXPECT_EQ(some.first_token, expected.first_token);
  ASSERT_EQ(some.top_tokens.size(), expected.top_tokens.size());
  for (size_t i = 0; i < expected.top_tokens.size(); ++i) {
    EXPECT_NEAR(some.top_tokens[i].logit, expected.top_tokens[i].logit, tolerance);
  }
}

TEST_P(PrefixTest, KvIsTheSameWhateverFollows) {
  for (const GridShape grid : {GridShape{1, 1}, {2, 2}}) {
    SCOPED_TRACE(name_of(grid));
    const auto first = prefill(grid, GetParam(), prompt(1200));
    ASSERT_TRUE(first->result.has_value());
    for (const int64_t num_tokens : {1711, 2048}) {
      SCOPED_TRACE(num_tokens);
      const auto run = prefill(grid, GetParam(), prompt(num_tokens));
      ASSERT_TRUE(run->result.has_value());
      EXPECT_EQ(num_different(run->cache, first->cache, 0, kShared), 0);
    }
  }
}

// More chunks than travel at once: the second half follows once the first is in the slab.
TEST_P(PrefixTest, AllPagesMayLieOnOneRank) {
  for (const GridShape grid : {GridShape{1, 2}, {2, 2}, {1, 3}}) {
    SCOPED_TRACE(name_of(grid));
    const auto earlier = prefill(grid, GetParam(), prompt(1311));
    const auto tokens = prompt(1200);
    const auto behind = [&](PromptPrefix prefix) {
      return prefill(grid, GetParam(), tokens,
                     {.cache = &earlier->cache, .prefix = std::move(prefix)});
    };
    const auto on_all = behind(turned_prefix(16, grid));
    ASSERT_TRUE(on_all->result.has_value());
    for (const int owner : {0, grid.cp - 1}) {
      SCOPED_TRACE(owner);
      const auto on_one = behind({.owners = std::vector<int>(16, owner)});
      ASSERT_TRUE(on_one->result.has_value());
      EXPECT_EQ(num_different(on_one->cache, on_all->cache, kShared, 1200), 0);
      EXPECT_EQ(on_one->cache.page_scores(), on_all->cache.page_scores());
      expect_same_answer(*on_one->result, *on_all->result, 0);
    }
  }
}

// If the remaining rows fall into the same product tiles as in the whole prompt, results are equal
// bit for bit: everything else is computed in row tiles of 64. Products with different numbers of
// rows round differently in float32 (oneDNN); 1e-3 on values around 1 is a thousand times that, and
// far below the effect of a wrong key. In bfloat16, 0.0625 is four units in the last place of
// values up to 4.
TEST_P(PrefixTest, APromptBehindCachedPagesIsTheSameAsAWholeOne) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const GridShape grid : kGrids) {
      SCOPED_TRACE(name_of(grid) + " " + std::string(dtype_name(dtype)));
      const auto earlier = prefill(grid, GetParam(), prompt(1311), {}, dtype);
      const auto tokens = prompt(1200);
      const auto whole = prefill(grid, GetParam(), tokens, {}, dtype);
      ASSERT_TRUE(whole->result.has_value());
      for (const int64_t num_pages : {1, 9, 16}) {
        SCOPED_TRACE(num_pages);
        const auto behind =
            prefill(grid, GetParam(), tokens,
                    {.cache = &earlier->cache, .prefix = turned_prefix(num_pages, grid)}, dtype);
        ASSERT_TRUE(behind->result.has_value());
        const bool same_tiles = grid.cp == 1 && 64 * num_pages % kTileTokens == 0;
        const double tolerance = dtype == DType::kFloat32 ? 1e-3 : 0.0625;
        if (same_tiles) {
          EXPECT_EQ(num_different(behind->cache, whole->cache, 64 * num_pages, 1200), 0);
          EXPECT_EQ(behind->cache.page_scores(), whole->cache.page_scores());
        }
        EXPECT_LT(largest_difference(behind->cache, whole->cache, 64 * num_pages, 1200, dtype),
                  tolerance);
        const auto& scores = behind->cache.page_scores();
        for (size_t i = 0; i < scores.size(); ++i) {
          ASSERT_NEAR(scores[i], whole->cache.page_scores()[i], tolerance / 4);
        }
        expect_same_answer(*behind->result, *whole->result, same_tiles ? 0 : tolerance);
      }
    }
  }
}

class WindowPrefixTest : public PrefixTest {
 protected:
  void SetUp() override {
    config_ = test::tiny_model_config("MinistralForCausalLM");
    config_.layer_windows = {100, 0};
    PrefixTest::SetUp();
  }
};

TEST_P(WindowPrefixTest, APromptBehindCachedPagesIsTheSameAsAWholeOne) {
  const auto plan = *plan::make_head_plan(GetParam(), config_, 1200, 0);
  EXPECT_TRUE(plan::is_prefix_pure(plan));
  for (const GridShape grid : kGrids) {
    SCOPED_TRACE(name_of(grid));
    const auto earlier = prefill(grid, GetParam(), prompt(1311));
    const auto tokens = prompt(1200);
    const auto whole = prefill(grid, GetParam(), tokens);
    ASSERT_TRUE(whole->result.has_value());
    // 16 pages. The first new row, 1,024, sees keys from 925 on, all cached except its own.
    const auto behind = prefill(grid, GetParam(), tokens,
                                {.cache = &earlier->cache, .prefix = turned_prefix(16, grid)});
    ASSERT_TRUE(behind->result.has_value());
    if (grid.cp == 1) {
      EXPECT_EQ(num_different(behind->cache, whole->cache, kShared, 1200), 0);
      EXPECT_EQ(behind->cache.page_scores(), whole->cache.page_scores());
    }
    // As above.
    EXPECT_LT(largest_difference(behind->cache, whole->cache, kShared, 1200, DType::kFloat32),
              1e-3);
    expect_same_answer(*behind->result, *whole->result, grid.cp == 1 ? 0 : 1e-3);
  }
}

// Models of tests/models/architectures whose layers differ from Llama's, under dense plans.
class ArchitecturePrefixTest : public PrefixTest {
 protected:
  void SetUp() override {
    model_ = std::string(MILLRACE_SOURCE_DIR "/tests/models/architectures/") + GetParam();
    const auto config = model::load_model_config(model_);
    MR_CHECK(config.ok(), "{}", config.error().to_string());
    config_ = *config;
  }
};

TEST_P(ArchitecturePrefixTest, APromptBehindCachedPagesIsTheSameAsAWholeOne) {
  for (const GridShape grid : {GridShape{1, 1}, {2, 2}}) {
    SCOPED_TRACE(name_of(grid));
    const auto earlier = prefill(grid, "dense", prompt(1311));
    const auto tokens = prompt(1200);
    const auto whole = prefill(grid, "dense", tokens);
    ASSERT_TRUE(whole->result.has_value());
    const auto behind = prefill(grid, "dense", tokens,
                                {.cache = &earlier->cache, .prefix = turned_prefix(16, grid)});
    ASSERT_TRUE(behind->result.has_value());
    // As above.
    EXPECT_LT(largest_difference(behind->cache, whole->cache, kShared, 1200, DType::kFloat32),
              1e-3);
    expect_same_answer(*behind->result, *whole->result, 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ArchitecturePrefixTest,
                         testing::Values("gemma3", "glm4", "glm4-moe", "gpt-oss", "minimax",
                                         "smollm3"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(PurePlans, WindowPrefixTest,
                         testing::Values("dense", "adaptive:0.05,0.3,4"), [](const auto& pattern) {
                           return pattern.param.substr(0, pattern.param.find(':'));
                         });

INSTANTIATE_TEST_SUITE_P(PurePlans, PrefixTest,
                         testing::Values("dense", "a-shape:64,128", "block-sparse:4",
                                         "elastic:200,0", "adaptive:0.05,0.3,4"),
                         [](const auto& pattern) {
                           std::string name = pattern.param.substr(0, pattern.param.find(':'));
                           std::erase(name, '-');
                           return name;
                         });

class PrefixEngineTest : public PrefixTest {};

// Shows that the test above would notice a page of another prompt.
TEST_F(PrefixEngineTest, AnotherPromptsPageShows) {
  const auto tokens = prompt(1200);
  auto other_tokens = tokens;
  other_tokens[70] = (other_tokens[70] + 1) % config_.vocab_size;
  const auto other = prefill({1, 2}, "dense", other_tokens);
  const auto whole = prefill({1, 2}, "dense", tokens);
  const auto behind = prefill({1, 2}, "dense", tokens,
                              {.cache = &other->cache, .prefix = turned_prefix(9, {1, 2})});
  EXPECT_GT(num_different(behind->cache, whole->cache, 64 * 9, 1200), 1000);
}

TEST_F(PrefixEngineTest, VerticalSlashIsNotPure) {
  const std::string plan = "vertical-slash:64,64";
  EXPECT_FALSE(plan::is_prefix_pure(*plan::make_head_plan(plan, config_, 1200, 0)));
  const auto a = prefill({1, 1}, plan, prompt(1200));
  const auto b = prefill({1, 1}, plan, prompt(2048));
  EXPECT_GT(num_different(a->cache, b->cache, 0, kShared), 1000);
}

TEST_F(PrefixEngineTest, APageThatOneRankCannotReadIsTheErrorOfAll) {
  const GridShape grid{2, 2};
  const auto earlier = prefill(grid, "dense", prompt(1311));
  const auto behind =
      prefill(grid, "dense", prompt(1200),
              {.cache = &earlier->cache, .prefix = turned_prefix(9, grid), .failing_rank = 3});
  ASSERT_EQ(behind->failures.size(), 4u);
  for (const auto& failure : behind->failures) {
    EXPECT_EQ(failure.code, Errc::kCorrupt);
    EXPECT_THAT(failure.message, testing::HasSubstr("rank 3: a damaged page"));
  }
}

}  // namespace
}  // namespace millrace::engine
