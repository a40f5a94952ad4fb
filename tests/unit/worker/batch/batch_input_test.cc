// SPDX-License-Identifier: Apache-2.0
// How a batch job handles input that comes slowly, is too long, or was done before.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <fstream>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "worker/batch/batch_job.h"
#include "worker/sync/command_channel.h"

namespace millrace::worker {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;

class BatchInputTest : public testing::Test {
 protected:
  void SetUp() override {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model_.path());
  }

  // This rank of a job over `world`.
  Result<BatchSummary> run_rank(std::unique_ptr<comm::Communicator> world,
                                const BatchOptions& options) {
    const engine::GridShape grid{1, world->size()};
    MR_ASSIGN_OR_RETURN(
        const auto runtime,
        engine::RankRuntime::create(std::move(world), test::rank_options(model_.path(), grid)));
    return BatchJob(batch_resources(*runtime), options).run();
  }

  Result<BatchSummary> run_alone(const std::string& text, BatchOptions options) {
    options.input_path = work_.write("prompts.jsonl", text);
    options.output_directory = work_.file("out");
    options.head_plan = "dense";
    Result<BatchSummary> summary = Error(Errc::kInternal, "did not run");
    test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
      summary = run_rank(std::move(world), options);
    });
    return summary;
  }

  // "id status" of each line.
  std::vector<std::string> results() const {
    std::vector<std::string> found;
    std::ifstream file(work_.file("out") + "/results.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto result = json::parse(line).as_object();
      found.push_back(fmt::format("{} {}", std::string(result.at("id").as_string()),
                                  std::string(result.at("status").as_string())));
    }
    return found;
  }

  static std::string prompt(const std::string& id) {
    return fmt::format(R"({{"id":"{}","prompt_token_ids":[1,2,3]}})", id) + "\n";
  }

  test::TempDirectory model_, work_;
};

// Rank 0 leads, rank 1 follows, and rank 2 is the test: it writes the input, and pauses for longer
// than the layer timeout.
TEST_F(BatchInputTest, RanksStayWhileNobodyWrites) {
  const std::string path = work_.file("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int writer = open(path.c_str(), O_RDWR);  // before any reader
  const BatchOptions options = {.input_path = path,
                                .output_directory = work_.file("out"),
                                .layer_timeout = std::chrono::milliseconds(1)};
  std::vector<Result<void>> outcomes(3, Error(Errc::kInternal, "did not run"));
  const auto hear_two_commands = [&](comm::Communicator& world) -> Result<void> {
    for (int i = 0; i < 2; ++i) {
      MR_ASSIGN_OR_RETURN(const auto command,
                          broadcast_command(world, {}, Deadline::after(std::chrono::seconds(10))));
      if (command.stop() || command.has_run()) return error(Errc::kInternal, "nobody wrote");
    }
    return {};
  };
  test::run_ranks(3, [&](std::unique_ptr<comm::Communicator> world) {
    const auto rank = static_cast<size_t>(world->rank());
    if (rank == 2) {
      const auto runtime =
          *engine::RankRuntime::create(std::move(world), test::rank_options(model_.path(), {1, 3}));
      auto& commands = runtime->grid().world();
      outcomes[rank] = hear_two_commands(commands);
      close(writer);
      for (bool stop = false; outcomes[rank].ok() && !stop;) {
        const auto command =
            broadcast_command(commands, {}, Deadline::after(std::chrono::seconds(10)));
        if (!command.ok()) outcomes[rank] = command.error();
        stop = !command.ok() || command->stop();
      }
    } else if (auto summary = run_rank(std::move(world), options); summary.ok()) {
      outcomes[rank] = Result<void>();
    } else {
      outcomes[rank] = summary.error();
    }
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().to_string();
}

TEST_F(BatchInputTest, ALineOverTheLimitIsRefusedByItsNumberAndTheNextIsRun) {
  const auto summary =
      run_alone(prompt("a") + prompt(std::string(100, 'b')) + prompt("c"), {.max_line_bytes = 100});
  ASSERT_TRUE(summary.ok()) << summary.error().to_string();
  EXPECT_THAT(results(), ElementsAre("a ok", "line-2 error", "c ok"));
}

TEST_F(BatchInputTest, AResumedJobDoesNotWriteOverTheCacheOfAnIdThatIsDone) {
  ASSERT_TRUE(run_alone(prompt("a"), {.save_kv = true}).ok());
  const auto summary = run_alone(prompt("a") + prompt("a"), {.resume = true, .save_kv = true});
  ASSERT_TRUE(summary.ok()) << summary.error().to_string();
  EXPECT_THAT(results(), ElementsAre("a ok", "line-2 error"));
}

}  // namespace
}  // namespace millrace::worker
