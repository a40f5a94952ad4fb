// SPDX-License-Identifier: Apache-2.0
// Batch jobs on a far device.

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <tuple>

#include "tests/unit/worker/far_device/far_device_case.h"
#include "worker/batch/batch_job.h"

namespace millrace::worker {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

// The files of a job by name. The times are cut out of the results.
using JobFiles = std::map<std::string, std::string>;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FarDeviceBatch : public FarDeviceTest {
 protected:
  using FarDeviceTest::FarDeviceTest;

  BatchOptions options(const std::vector<json::object>& prompts) {
    std::string lines;
    for (const auto& prompt : prompts) lines += json::serialize(prompt) + "\n";
    return {.input_path = work_.write("prompts.jsonl", lines),
            .output_directory = work_.file("out"),
            .layer_timeout = kTimeout};
  }

  static Result<BatchSummary> run(DeviceRank& rank, const BatchOptions& options,
                                  RankWatch* watch = nullptr) {
    const engine::PromptLimits limits = {.vocab_size = 101, .max_prompt_tokens = 1000};
    return BatchJob({.engine = rank.engine,
                     .device = *rank.device,
                     .weights = *rank.weights,
                     .grid = rank.grid,
                     .limits = limits,
                     .watch = watch},
                    options)
        .run();
  }

  JobFiles files_of(engine::GridShape grid, Memory memory, const BatchOptions& options) const {
    on_ranks(grid, memory, [&](DeviceRank& rank) { must(run(rank, options)); });
    return job_files(options.output_directory);
  }

  test::TempDirectory work_;

 private:
  static JobFiles job_files(const fs::path& directory) {
    JobFiles files;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file()) files[fs::relative(entry, directory)] = read_file(entry);
    }
    auto results = json::parse(files["results.jsonl"]).as_object();
    results.erase("seconds");
    files["results.jsonl"] = json::serialize(results);
    return files;
  }
};

json::array prompt_tokens() {
  json::array tokens;
  for (const int32_t token : token_ids()) tokens.push_back(token);
  return tokens;
}

void expect_ok(const JobFiles& files) {
  const std::string& results = files.at("results.jsonl");
  EXPECT_NE(results.find("\"status\":\"ok\""), std::string::npos) << results;
}

class FarDevicePlans : public FarDeviceBatch,
                       public testing::WithParamInterface<std::tuple<std::string, int, int>> {
 protected:
  // Prefill and generation. With a sink of KV files, the engine finishes a layer before it goes on
  // with the next.
  JobFiles run_job(Memory memory, bool save_kv) {
    auto job = options({{{"id", "p"},
                         {"prompt_token_ids", prompt_tokens()},
                         {"max_tokens", 4},
                         {"probe_positions", {0, 64, 700}}}});
    job.head_plan = std::get<0>(GetParam());
    job.save_kv = save_kv;
    job.output_directory = work_.file(memory == Memory::kNear ? "near" : "far");
    return files_of({.tp = std::get<1>(GetParam()), .cp = std::get<2>(GetParam())}, memory, job);
  }
};

TEST_P(FarDevicePlans, ABatchJobGivesTheSameTokensLogitsAndKvFiles) {
  const auto near = run_job(Memory::kNear, /*save_kv=*/true);
  const auto far = run_job(Memory::kFarLate, /*save_kv=*/true);
  expect_ok(near);
  EXPECT_EQ(near.at("results.jsonl"), far.at("results.jsonl"));
  EXPECT_EQ(near.size(), far.size());
  for (const auto& [name, bytes] : near) EXPECT_TRUE(bytes == far.at(name)) << name;
}

TEST_P(FarDevicePlans, ABatchJobGivesTheSameTokensAndLogitsWithTheHostALayerAhead) {
  const auto near = run_job(Memory::kNear, /*save_kv=*/false);
  const auto far = run_job(Memory::kFarLate, /*save_kv=*/false);
  expect_ok(near);
  EXPECT_EQ(near.at("results.jsonl"), far.at("results.jsonl"));
}

INSTANTIATE_TEST_SUITE_P(
    Plans, FarDevicePlans,
    testing::Values(std::tuple("vertical-slash:64,128", 1, 1),
                    std::tuple("vertical-slash:64,128", 2, 2), std::tuple("adaptive:0.6", 1, 1),
                    std::tuple("adaptive:0.6", 1, 2), std::tuple("block-sparse:4", 2, 1),
                    std::tuple("a-shape:64,128", 1, 3), std::tuple("vertical-slash:64,128", 1, 4),
                    std::tuple("block-sparse:4", 2, 4)),
    [](const auto& job) {
      std::string name = std::get<0>(job.param).substr(0, std::get<0>(job.param).find(':'));
      std::erase(name, '-');
      return fmt::format("{}_tp{}_cp{}", name, std::get<1>(job.param), std::get<2>(job.param));
    });

// Kept pages are copied together on the device, and then the original is freed.
TEST_F(FarDeviceBatch, GenerationOverAPartOfTheCacheGivesTheSameTokens) {
  for (const engine::GridShape grid : {engine::GridShape{1, 1}, engine::GridShape{2, 2}}) {
    const auto run_job = [&](Memory memory) {
      auto job = options({{{"id", "p"},
                           {"prompt_token_ids", prompt_tokens()},
                           {"max_tokens", 12},
                           {"ignore_eos", true}}});
      job.kv_budget = 0.5;
      job.output_directory =
          work_.file(fmt::format("{}{}", memory == Memory::kNear ? "near" : "far", grid.tp));
      return files_of(grid, memory, job);
    };
    const auto near = run_job(Memory::kNear);
    expect_ok(near);
    EXPECT_NE(near.at("results.jsonl").find("dropped"), std::string::npos);
    EXPECT_EQ(near.at("results.jsonl"), run_job(Memory::kFarLate).at("results.jsonl"));
  }
}

class FarDeviceWindows : public FarDeviceBatch {
 protected:
  FarDeviceWindows() : FarDeviceBatch({0, 8, 0, 8}) {}
};

// The window begins among the tokens that are generated.
TEST_F(FarDeviceWindows, ABatchJobGivesTheSameTokensAndLogits) {
  for (const engine::GridShape grid : {engine::GridShape{1, 1}, engine::GridShape{2, 2}}) {
    const auto run_job = [&](Memory memory) {
      auto job = options({{{"id", "p"},
                           {"prompt_token_ids", prompt_tokens()},
                           {"max_tokens", 12},
                           {"ignore_eos", true}}});
      job.output_directory =
          work_.file(fmt::format("{}{}", memory == Memory::kNear ? "near" : "far", grid.tp));
      return files_of(grid, memory, job);
    };
    const auto near = run_job(Memory::kNear);
    expect_ok(near);
    EXPECT_EQ(near.at("results.jsonl"), run_job(Memory::kFarLate).at("results.jsonl"));
  }
}

// One of the ranks that share a kv head writes its file after each layer; the others have no reason
// of their own not to run a layer ahead.
TEST_F(FarDeviceBatch, RanksOfDifferentSinksGoThroughTheLayersTogether) {
  auto job = options({{{"id", "p"}, {"prompt_token_ids", prompt_tokens()}}});
  job.save_kv = true;
  expect_ok(files_of({.tp = 8, .cp = 1}, Memory::kFar, job));  // 4 kv heads
}

// Generation takes additional memory for the tokens to come, which a single rank may lack.
TEST_F(FarDeviceBatch, ARankWithoutMemoryForGenerationFailsThePromptOnAllRanks) {
  const auto job =
      options({{{"id", "much"}, {"prompt_token_ids", {1, 2, 3}}, {"max_tokens", 4096}},
               {{"id", "little"}, {"prompt_token_ids", {1, 2, 3}}, {"max_tokens", 2}}});
  BatchSummary summary;
  on_ranks({.tp = 2, .cp = 1}, Memory::kFar, [&](DeviceRank& rank) {
    if (rank.number() == 1) rank.far_device().refuse_larger_than(1 << 20);
    const auto done = must(run(rank, job));
    if (rank.number() == 0) summary = done;
  });
  EXPECT_EQ(summary.num_failed, 1);
  EXPECT_EQ(summary.num_ok, 1);
  const auto results = read_file(job.output_directory + "/results.jsonl");
  EXPECT_NE(results.find("rank 1: "), std::string::npos) << results;
}

// An operation that does not end until the watch has reported it, as on a GPU that waits for a
// peer.
TEST_F(FarDeviceBatch, ADeviceThatHangsIsEndedByTheWatch) {
  auto job = options({{{"id", "p"}, {"prompt_token_ids", prompt_tokens()}}});
  job.layer_timeout = std::chrono::milliseconds(100);
  std::promise<std::string> ended;
  auto why = ended.get_future().share();
  on_one_rank(Memory::kFarLate, [&](DeviceRank& rank) {
    rank.far_device().enqueue([&] { why.wait(); });
    const auto watch =
        must(RankWatch::alone([&](const Error& reason) { ended.set_value(reason.message); }));
    (void)run(rank, job, watch.get());  // whatever becomes of it: a process would have ended
  });
  EXPECT_EQ(why.get(), "stuck in the first layer: not done within 0.2 s");
}

}  // namespace
}  // namespace millrace::worker
