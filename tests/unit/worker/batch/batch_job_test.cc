// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <future>
#include <latch>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "worker/sync/command_channel.h"

namespace millrace::worker {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class BatchJobTest : public testing::Test {
 protected:
  void SetUp() override {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model_.path());
  }

  // Runs a job of `lines` on a grid, without results of an earlier one. Returns rank 0's summary
  // and the result lines.
  Result<BatchSummary> run(const std::vector<std::string>& lines, engine::GridShape grid,
                           BatchOptions options) {
    if (std::filesystem::is_regular_file(results_path())) std::filesystem::remove(results_path());
    return run_again(lines, grid, std::move(options));
  }

  Result<BatchSummary> run_again(const std::vector<std::string>& lines, engine::GridShape grid,
                                 BatchOptions options) {
    std::string text;
    for (const auto& line : lines) text += line + "\n";
    options.input_path = work_.write("prompts.jsonl", text);
    return run_input(grid, std::move(options));
  }

  Result<BatchSummary> run_input(engine::GridShape grid, BatchOptions options) {
    options.output_directory = work_.file("out");
    options.layer_timeout = std::chrono::seconds(60);
    Result<BatchSummary> summary = Error(Errc::kInternal, "rank 0 did not run");
    test::run_ranks(grid.tp * grid.cp, [&](std::unique_ptr<comm::Communicator> world) {
      const bool root = world->rank() == 0;
      auto options_of_rank = test::rank_options(model_.path(), grid);
      options_of_rank.max_prompt_tokens = 1000;
      auto runtime = engine::RankRuntime::create(std::move(world), options_of_rank);
      BatchJob job(batch_resources(**runtime), options);
      auto own = job.run();
      if (root) summary = std::move(own);
    });
    read_results();
    return summary;
  }

  std::string results_path() const { return work_.file("out") + "/results.jsonl"; }

  void read_results() {
    results_.clear();
    if (!std::filesystem::is_regular_file(results_path())) return;
    std::ifstream file(results_path());
    for (std::string line; std::getline(file, line);)
      results_.push_back(json::parse(line).as_object());
  }

  static std::string prompt_line(const std::string& id, int num_tokens,
                                 const std::string& more = "") {
    json::array tokens;
    for (int i = 0; i < num_tokens; ++i) tokens.push_back((i * 7 + 3) % 101);
    return fmt::format(R"({{"id":"{}","prompt_token_ids":{}{}}})", id, json::serialize(tokens),
                       more);
  }

  test::TempDirectory model_, work_;
  std::vector<json::object> results_;
};

TEST_F(BatchJobTest, OneBadPromptNeverEndsTheJob) {
  const auto summary = run({prompt_line("first", 100), "not json", prompt_line("empty", 0),
                            R"({"id":"outside","prompt_token_ids":[5,101]})",
                            prompt_line("long", 1001), "", prompt_line("last", 64)},
                           {2, 1}, {.head_plan = "dense"});
  ASSERT_TRUE(summary.ok()) << summary.error().to_string();
  EXPECT_EQ(summary->num_ok, 2);
  EXPECT_EQ(summary->num_failed, 4);
  ASSERT_EQ(results_.size(), 6U);
  const auto message = [&](size_t i) {
    return std::string(results_[i].at("error").as_object().at("message").as_string());
  };
  EXPECT_EQ(results_[0].at("status"), "ok");
  EXPECT_EQ(results_[1].at("id"), "line-2");
  EXPECT_EQ(message(2), "the prompt is empty");
  EXPECT_EQ(message(3), "token id 101 at position 1 is outside [0, 101)");
  EXPECT_EQ(message(4), "prompt of 1001 tokens, limit 1000");
  EXPECT_EQ(results_[5].at("id"), "last");
  EXPECT_EQ(results_[5].at("status"), "ok");
}

TEST_F(BatchJobTest, GeneratesTheSameTokensAsPrefillingThemOneByOne) {
  constexpr int kNewTokens = 5;
  const std::string more = fmt::format(R"(,"max_tokens":{})", kNewTokens);
  // The reference: prefill the prompt with each generated token appended.
  json::array tokens =
      json::parse(prompt_line("x", 150)).as_object().at("prompt_token_ids").as_array();
  json::array expected;
  for (int i = 0; i < kNewTokens; ++i) {
    const json::object line = {{"id", "x"}, {"prompt_token_ids", tokens}};
    ASSERT_TRUE(run({json::serialize(line)}, {1, 1}, {.head_plan = "dense"}).ok());
    expected.push_back(results_[0].at("generated_token_ids").as_array()[0]);
    tokens.push_back(expected.back());
  }
  for (const engine::GridShape grid : {engine::GridShape{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} cp {}", grid.tp, grid.cp));
    ASSERT_TRUE(run({prompt_line("x", 150, more)}, grid, {.head_plan = "dense"}).ok());
    EXPECT_EQ(results_[0].at("generated_token_ids").as_array(), expected);
  }
}

TEST_F(BatchJobTest, GenerationEndsWithTheTextUnlessItIsToldNotTo) {
  const std::string more = R"(,"max_tokens":5)";
  ASSERT_TRUE(run({prompt_line("x", 150, more)}, {1, 1}, {.head_plan = "dense"}).ok());
  const auto all = results_[0].at("generated_token_ids").as_array();
  EXPECT_EQ(results_[0].at("finish_reason"), "length");
  model_.write("generation_config.json",
               json::serialize(json::object{{"eos_token_id", json::array{all[2]}}}));
  const json::array text(all.begin(), std::find(all.begin(), all.end(), all[2]) + 1);
  for (const engine::GridShape grid : {engine::GridShape{1, 1}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} cp {}", grid.tp, grid.cp));
    ASSERT_TRUE(
        run({prompt_line("x", 150, more), prompt_line("y", 150, more + R"(,"ignore_eos":true)")},
            grid, {.head_plan = "dense"})
            .ok());
    EXPECT_EQ(results_[0].at("generated_token_ids").as_array(), text);
    EXPECT_EQ(results_[0].at("finish_reason"), "stop");
    EXPECT_EQ(results_[1].at("generated_token_ids").as_array(), all);
    EXPECT_EQ(results_[1].at("finish_reason"), "length");
  }
}

// The reference: the distribution over all tokens after the prompt cut off after the probe.
TEST_F(BatchJobTest, LogProbabilitiesAtProbesAreThoseAfterAPromptThatEndsThere) {
  const json::array tokens =
      json::parse(prompt_line("x", 150)).as_object().at("prompt_token_ids").as_array();
  std::map<int64_t, std::map<int64_t, double>> expected;  // position, token
  for (const int64_t probe : {0, 64, 140}) {
    const json::object line = {{"id", "x"},
                               {"prompt_token_ids", json::array(&tokens[0], &tokens[probe] + 1)}};
    ASSERT_TRUE(run({json::serialize(line)}, {1, 1}, {.head_plan = "dense"}).ok());
    for (const auto& pair : results_[0].at("top_logprobs").as_array()) {
      expected[probe][pair.at(0).as_int64()] = pair.at(1).as_double();
    }
  }
  for (const engine::GridShape grid : {engine::GridShape{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} cp {}", grid.tp, grid.cp));
    for (size_t rank = 0; rank < 10; ++rank) {
      json::array targets, wanted;
      for (const auto& [probe, logprobs] : expected) {
        const auto target = std::next(logprobs.begin(), static_cast<int64_t>(rank));
        targets.push_back(target->first);
        wanted.push_back(target->second);
      }
      const auto more = fmt::format(R"(,"probe_positions":[0,64,140],"probe_target_ids":{})",
                                    json::serialize(targets));
      ASSERT_TRUE(run({prompt_line("x", 150, more)}, grid, {.head_plan = "dense"}).ok());
      const auto& got = results_[0].at("probe_logprobs").as_array();
      ASSERT_EQ(got.size(), 3U);
      // Sums in another order: 1e-4 is a thousand roundings of a logit around 1.
      for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[i].as_double(), wanted[i].as_double(), 1e-4);
    }
  }
}

TEST_F(BatchJobTest, ATapReplacesTheIndexOfEveryLayerOfEveryPrompt) {
  const std::vector<std::string> lines = {prompt_line("a", 600), prompt_line("b", 900)};
  ASSERT_TRUE(run(lines, {1, 1}, {.head_plan = "adaptive:0.01,0.01"}).ok());
  for (const auto& result : results_) EXPECT_LT(result.at("density").as_double(), 0.8);
  const auto attend_to_all = [](const engine::BuiltIndex& built) {
    const auto& shape = built.index.shape;
    std::fill_n(built.index.block_count, shape.num_heads * shape.num_tiles, kernels::kDenseTile);
  };
  ASSERT_TRUE(
      run(lines, {1, 1}, {.head_plan = "adaptive:0.01,0.01", .index_tap = attend_to_all}).ok());
  ASSERT_EQ(results_.size(), 2U);
  for (const auto& result : results_) EXPECT_EQ(result.at("density").as_double(), 1.0);
}

TEST_F(BatchJobTest, ProbeTargetOutsideTheVocabularyFailsThePrompt) {
  ASSERT_TRUE(
      run({prompt_line("x", 10, R"(,"probe_positions":[4],"probe_target_ids":[101])")}, {1, 1}, {})
          .ok());
  EXPECT_THAT(json::serialize(results_[0]),
              HasSubstr("probe_target_ids: token id 101 at position 0 is outside [0, 101)"));
}

TEST_F(BatchJobTest, SavedKvCoversEveryTokenAndHeadOnce) {
  ASSERT_TRUE(
      run({prompt_line("kept", 300)}, {2, 2}, {.head_plan = "dense", .save_kv = true}).ok());
  const std::string directory = work_.file("out") + "/kv/kept";
  std::ifstream file(directory + "/manifest.json");
  const auto manifest =
      json::parse(std::string(std::istreambuf_iterator<char>(file), {})).as_object();
  std::map<std::pair<int64_t, int64_t>, int> owners;  // (kv head, token)
  for (const auto& value : manifest.at("files").as_array()) {
    const auto& entry = value.as_object();
    EXPECT_TRUE(
        std::filesystem::exists(directory + "/" + std::string(entry.at("file").as_string())));
    for (int64_t h = 0; h < entry.at("num_kv_heads").as_int64(); ++h) {
      for (const auto& range : entry.at("token_ranges").as_array()) {
        for (int64_t t = range.as_array()[0].as_int64(); t < range.as_array()[1].as_int64(); ++t) {
          ++owners[{entry.at("first_kv_head").as_int64() + h, t}];
        }
      }
    }
  }
  EXPECT_EQ(owners.size(), 4U * 300U);
  for (const auto& [key, count] : owners) EXPECT_EQ(count, 1);
}

// The only rank's file is a FIFO, so the job stays in the middle of the cache until the FIFO is
// read.
TEST_F(BatchJobTest, ACacheHasAManifestOnlyWhileItIsWhole) {
  const std::string directory = work_.file("out") + "/kv/x";
  const std::string manifest = directory + "/manifest.json";
  const std::string file = directory + "/rank-0.safetensors";
  std::filesystem::create_directories(directory);
  std::ofstream(manifest) << "of the cache that is written over";
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  auto job = std::async(std::launch::async, [&] {
    return run({prompt_line("x", 300)}, {1, 1}, {.head_plan = "dense", .save_kv = true});
  });
  std::ifstream fifo(file, std::ios::binary);  // opens when the job has opened it
  EXPECT_FALSE(std::filesystem::exists(manifest));
  const std::string bytes(std::istreambuf_iterator<char>(fifo), {});
  const auto summary = job.get();
  ASSERT_TRUE(summary.ok()) << summary.error().to_string();
  EXPECT_EQ(summary->num_ok, 1);
  std::ifstream text(manifest);
  const std::string written(std::istreambuf_iterator<char>(text), {});
  EXPECT_EQ(json::parse(written).as_object().at("num_tokens"), 300);
  EXPECT_FALSE(std::filesystem::exists(manifest + ".partial"));
}

// /dev/full accepts an open and refuses every write with ENOSPC.
TEST_F(BatchJobTest, FullDiskFailsThePromptAndLeavesNoHalfCache) {
  for (const std::string name : {"rank-1.safetensors", "manifest.json.partial"}) {
    SCOPED_TRACE(name);
    std::filesystem::create_directories(work_.file("out") + "/kv/full");
    std::filesystem::create_symlink("/dev/full", work_.file("out") + "/kv/full/" + name);
    const auto summary = run({prompt_line("full", 200), prompt_line("next", 200)}, {2, 1},
                             {.head_plan = "dense", .save_kv = true});
    ASSERT_TRUE(summary.ok()) << summary.error().to_string();
    EXPECT_EQ(summary->num_failed, 1);
    EXPECT_EQ(summary->num_ok, 1);
    const auto message = results_[0].at("error").as_object().at("message").as_string();
    EXPECT_NE(message.find("No space left on device"), json::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(work_.file("out") + "/kv/full"));
    EXPECT_TRUE(std::filesystem::exists(work_.file("out") + "/kv/next/manifest.json"));
  }
}

TEST_F(BatchJobTest, FullDiskUnderTheResultsEndsTheJobOnAllRanksAndNamesTheLine) {
  std::filesystem::create_directories(work_.file("out"));
  std::filesystem::create_symlink("/dev/full", work_.file("out") + "/results.jsonl");
  const auto summary =
      run({prompt_line("a", 10), prompt_line("b", 10)}, {2, 1}, {.head_plan = "dense"});
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, Errc::kIo);
  EXPECT_NE(summary.error().message.find("write of line 1: No space left on device"),
            std::string::npos)
      << summary.error().message;
}

TEST_F(BatchJobTest, InputThatIsWhatTheResultsGoToIsRefusedAndLeftAlone) {
  const std::string lines = prompt_line("a", 10) + "\n";
  std::filesystem::create_directories(work_.file("out"));
  std::ofstream(results_path()) << lines;
  std::filesystem::create_symlink(results_path(), work_.file("input.jsonl"));
  for (const bool resume : {false, true}) {
    const auto summary = run_input(
        {2, 1}, {.input_path = work_.file("input.jsonl"), .head_plan = "dense", .resume = resume});
    ASSERT_FALSE(summary.ok());
    EXPECT_EQ(summary.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(summary.error().message, HasSubstr("is also the file that results go to"));
    EXPECT_EQ(std::filesystem::file_size(results_path()), lines.size());
  }
}

// /proc/self/mem can be opened, is no directory, and gives EIO at its first byte.
TEST_F(BatchJobTest, InputThatCannotBeReadEndsTheJob) {
  for (const std::string& input : {work_.path(), std::string("/proc/self/mem")}) {
    SCOPED_TRACE(input);
    const auto summary = run_input({2, 1}, {.input_path = input, .head_plan = "dense"});
    ASSERT_FALSE(summary.ok());
    EXPECT_THAT(summary.error().message, HasSubstr(input));
  }
}

TEST_F(BatchJobTest, ResultsOfAnEarlierJobAreRefusedAndLeftAlone) {
  ASSERT_TRUE(run({prompt_line("a", 10)}, {1, 1}, {.head_plan = "dense"}).ok());
  const auto size = std::filesystem::file_size(results_path());
  const auto summary = run_again({prompt_line("b", 10)}, {1, 1}, {.head_plan = "dense"});
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(summary.error().message, HasSubstr("--resume"));
  EXPECT_EQ(std::filesystem::file_size(results_path()), size);
}

TEST_F(BatchJobTest, AResumedJobKeepsWhatIsDoneAndComputesTheRest) {
  ASSERT_TRUE(
      run({prompt_line("done", 10), prompt_line("bad", 0)}, {1, 1}, {.head_plan = "dense"}).ok());
  std::ofstream(results_path(), std::ios::app) << R"({"id":"torn","status":"o)";
  const auto summary =
      run_again({prompt_line("done", 10), prompt_line("bad", 20), prompt_line("torn", 30)}, {2, 1},
                {.head_plan = "dense", .resume = true});
  ASSERT_TRUE(summary.ok()) << summary.error().to_string();
  EXPECT_EQ(summary->num_done_before, 1);
  EXPECT_EQ(summary->num_ok, 2);
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& line : results_) {
    lines.emplace_back(line.at("id").as_string(), line.at("status").as_string());
  }
  EXPECT_THAT(lines, ElementsAre(Pair("done", "ok"), Pair("bad", "error"), Pair("bad", "ok"),
                                 Pair("torn", "ok")));
}

TEST_F(BatchJobTest, AResumedJobWithOtherSettingsIsRefusedAndNamesThem) {
  ASSERT_TRUE(run({prompt_line("a", 10)}, {1, 1}, {.head_plan = "dense"}).ok());
  const auto size = std::filesystem::file_size(results_path());
  const auto summary = run_again({prompt_line("a", 10), prompt_line("b", 10)}, {1, 1},
                                 {.head_plan = "a-shape:64,128", .resume = true});
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(summary.error().message,
              HasSubstr("the earlier job had --head-plan 'dense', not 'a-shape:64,128'"));
  EXPECT_EQ(std::filesystem::file_size(results_path()), size);
}

TEST_F(BatchJobTest, AResumedJobWithAnotherPlanInTheSameFileIsRefused) {
  const auto plan = [this](const char* pattern) {
    json::array layers(static_cast<size_t>(test::tiny_model_config().num_layers), json::object());
    return work_.write("plan.json", json::serialize(json::object{{"default", pattern},
                                                                 {"layers", std::move(layers)}}));
  };
  const std::string path = plan("dense");
  const auto first = run({prompt_line("a", 10)}, {1, 1}, {.head_plan = path});
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  plan("a-shape:64,128");
  const auto summary =
      run_again({prompt_line("a", 10)}, {1, 1}, {.head_plan = path, .resume = true});
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(summary.error().message, HasSubstr("--head-plan"));
}

TEST_F(BatchJobTest, AResumedJobWithAnotherPromptUnderTheSameIdIsRefused) {
  ASSERT_TRUE(
      run({prompt_line("a", 10), prompt_line("b", 10)}, {1, 1}, {.head_plan = "dense"}).ok());
  const auto summary = run_again({prompt_line("a", 10), prompt_line("b", 11)}, {1, 1},
                                 {.head_plan = "dense", .resume = true});
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(summary.error().message, HasSubstr("line 2 of --input, 'b', is not the prompt"));
  EXPECT_EQ(results_.size(), 2U);
}

TEST_F(BatchJobTest, AResumedJobWithAnotherInputIsRefusedBeforeAnythingIsComputed) {
  ASSERT_TRUE(
      run({prompt_line("a", 10), prompt_line("b", 10)}, {1, 1}, {.head_plan = "dense"}).ok());
  const auto summary = run_again({prompt_line("other", 10), prompt_line("a", 10)}, {1, 1},
                                 {.head_plan = "dense", .resume = true});
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(summary.error().message, HasSubstr("line 1 of --input, 'other', is new"));
  EXPECT_EQ(results_.size(), 2U);
}

TEST_F(BatchJobTest, CachesThatAKilledJobDidNotFinishAreRemovedAndNothingElse) {
  const std::string kv = work_.file("out") + "/kv";
  for (const char* name : {"half", "whole", "mine"})
    std::filesystem::create_directories(kv + "/" + name);
  for (const char* file : {"half/rank-0.safetensors", "half/manifest.json.partial",
                           "whole/rank-0.safetensors", "whole/manifest.json", "mine/notes.txt"}) {
    std::ofstream(kv + "/" + file) << "x";
  }
  ASSERT_TRUE(run({prompt_line("a", 10)}, {1, 1}, {.head_plan = "dense"}).ok());
  EXPECT_FALSE(std::filesystem::exists(kv + "/half"));
  EXPECT_TRUE(std::filesystem::exists(kv + "/whole/rank-0.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(kv + "/mine/notes.txt"));
}

// A job is resumed by id, so an id must have only one result.
TEST_F(BatchJobTest, RepeatedIdsAreRefusedAndGoByTheirLine) {
  const std::vector<std::string> lines = {prompt_line("twice", 10), prompt_line("twice", 20),
                                          prompt_line("once", 30)};
  for (const bool resume : {false, true}) {
    const auto summary = run_again(lines, {1, 1}, {.head_plan = "dense", .resume = resume});
    ASSERT_TRUE(summary.ok()) << summary.error().to_string();
    EXPECT_EQ(summary->num_failed, 1);
    EXPECT_EQ(summary->num_done_before, resume ? 2 : 0);
  }
  std::vector<std::pair<std::string, std::string>> results;
  for (const auto& line : results_) {
    results.emplace_back(line.at("id").as_string(), line.at("status").as_string());
  }
  EXPECT_THAT(results, ElementsAre(Pair("twice", "ok"), Pair("line-2", "error"), Pair("once", "ok"),
                                   Pair("line-2", "error")));
  EXPECT_EQ(results_[0].at("num_tokens"), 10);
  EXPECT_THAT(json::serialize(results_[1]),
              HasSubstr("id 'twice' is already used by an earlier line"));
}

// Rank 1 takes the first prompt and then does nothing, like a rank that hangs.
TEST_F(BatchJobTest, RanksThatCannotMeetAfterAFailureEndTheJobAtTheFirstPrompt) {
  const BatchOptions options = {
      .input_path =
          work_.write("prompts.jsonl", prompt_line("a", 10) + "\n" + prompt_line("b", 10) + "\n"),
      .output_directory = work_.file("out"),
      .head_plan = "dense",
      .layer_timeout = std::chrono::milliseconds(50)};
  Result<BatchSummary> summary = Error(Errc::kInternal, "rank 0 did not run");
  std::latch ended(2);
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    const bool root = world->rank() == 0;
    const auto runtime =
        *engine::RankRuntime::create(std::move(world), test::rank_options(model_.path(), {2, 1}));
    if (root) {
      summary = BatchJob(batch_resources(*runtime), options).run();
    } else {
      // Rank 0 may have given up already.
      (void)broadcast_command(runtime->grid().world(), {},
                              Deadline::after(std::chrono::seconds(5)));
    }
    ended.arrive_and_wait();
  });
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, Errc::kPeerLost);
  read_results();
  EXPECT_TRUE(results_.empty());
}

TEST_F(BatchJobTest, IdsThatCouldLeaveTheOutputDirectoryAreRefused) {
  const auto summary =
      run({prompt_line("../up", 10), prompt_line("twice", 10), prompt_line("twice", 10)}, {1, 1},
          {.head_plan = "dense", .save_kv = true});
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->num_ok, 1);
  EXPECT_EQ(summary->num_failed, 2);
}

TEST_F(BatchJobTest, PlanThatIsNoPlanFailsThePromptWithTheFormsThatExist) {
  const auto summary = run({prompt_line("a", 10)}, {1, 2}, {.head_plan = "zigzag:3"});
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->num_failed, 1);
  EXPECT_NE(json::serialize(results_[0]).find("vertical-slash"), std::string::npos);
}

}  // namespace
}  // namespace millrace::worker
