// SPDX-License-Identifier: Apache-2.0
// Batch jobs that keep only part of each prompt's cache. They must generate the same as a decode
// over the whole cache that leaves the same pages out.

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "tests/unit/worker/sinks/masked_decode.h"
#include "worker/batch/batch_job.h"

namespace millrace::worker {
namespace {

namespace json = boost::json;

constexpr int kTokens = 700;  // 11 pages
constexpr int32_t kNew = 24;

class BatchBudgetTest : public testing::TestWithParam<engine::GridShape> {
 protected:
  static void SetUpTestSuite() {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 11, model().path());
  }
  static test::TempDirectory& model() {
    static test::TempDirectory directory;
    return directory;
  }
  static std::vector<int32_t> prompt() {
    std::vector<int32_t> tokens;
    for (int i = 0; i < kTokens; ++i) tokens.push_back((i * i % 89 + i * 7) % 101);
    return tokens;
  }

  // The result line.
  json::object run(engine::GridShape grid, double budget) {
    const test::TempDirectory work;
    const json::object line = {{"id", "a"},
                               {"prompt_token_ids", json::value_from(prompt())},
                               {"max_tokens", kNew},
                               {"ignore_eos", true}};
    BatchOptions options;
    options.input_path = work.write("prompts.jsonl", json::serialize(line) + "\n");
    options.output_directory = work.file("out");
    options.head_plan = "dense";
    options.layer_timeout = std::chrono::seconds(60);
    options.kv_budget = budget;
    test::run_ranks(grid.tp * grid.cp, [&](std::unique_ptr<comm::Communicator> world) {
      auto rank = test::rank_options(model().path(), grid);
      rank.max_prompt_tokens = 1000;
      auto runtime = engine::RankRuntime::create(std::move(world), rank);
      BatchJob job(batch_resources(**runtime), options);
      const auto summary = job.run();
      EXPECT_TRUE(summary.ok()) << summary.error().to_string();
    });
    std::ifstream file(BatchResults::path_in(options.output_directory));
    std::string text;
    std::getline(file, text);
    return json::parse(text).as_object();
  }
  static std::vector<int32_t> tokens_of(const json::object& result) {
    return json::value_to<std::vector<int32_t>>(result.at("generated_token_ids"));
  }
};

TEST_P(BatchBudgetTest, GeneratesAsOverTheWholeCacheWithTheSamePagesMasked) {
  const test::MaskedDecode reference(model().path(), prompt(), "dense");
  for (const double budget : {0.75, 0.5, 0.3}) {
    const auto kept = reference.choose(budget);
    const auto result = run(GetParam(), budget);
    EXPECT_EQ(tokens_of(result), reference.generate(kept, kNew)) << budget;
    const auto& dropped = result.at("dropped").as_object();
    EXPECT_EQ(dropped.at("pages").to_number<int64_t>(), kept.count_dropped());
    EXPECT_EQ(dropped.at("bytes").to_number<int64_t>(), kept.count_dropped() * 2 * 64 * 16 * 4);
    EXPECT_NEAR(dropped.at("mass").to_number<double>(), reference.dropped_mass(kept), 1e-5);
  }
}

TEST_P(BatchBudgetTest, ABudgetOfOneIsNone) {
  const test::MaskedDecode reference(model().path(), prompt(), "dense");
  const auto result = run(GetParam(), 1);
  EXPECT_FALSE(result.contains("dropped"));
  EXPECT_EQ(tokens_of(result), reference.generate(reference.choose(1), kNew));
  // Otherwise the other test would not notice the mask.
  EXPECT_NE(tokens_of(result), reference.generate(reference.choose(0.3), kNew));
}

// With eight tensor-parallel ranks, each kv head is on two.
INSTANTIATE_TEST_SUITE_P(Grids, BatchBudgetTest,
                         testing::Values(engine::GridShape{1, 1}, engine::GridShape{2, 2},
                                         engine::GridShape{1, 3}, engine::GridShape{8, 1}),
                         [](const auto& grid) {
                           return "Tp" + std::to_string(grid.param.tp) + "Cp" +
                                  std::to_string(grid.param.cp);
                         });

}  // namespace
}  // namespace millrace::worker
