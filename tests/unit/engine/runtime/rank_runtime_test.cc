// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/rank_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

using testing::Each;
using testing::HasSubstr;

// Two ranks of a group that are started with different options.
class RanksThatDiffer : public testing::Test {
 protected:
  RanksThatDiffer() {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 1, model_.path());
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 2, other_.path());
  }

  // What each is told.
  std::vector<std::string> start(const std::function<void(int rank, RankOptions&)>& change,
                                 const std::function<std::string(int rank)>& plan = {}) {
    std::vector<std::string> told(2);
    test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
      const int rank = world->rank();
      auto options = test::rank_options(model_.path(), {.tp = 1, .cp = 2});
      if (change) change(rank, options);
      auto& message = told[static_cast<size_t>(rank)];
      const auto runtime = RankRuntime::create(std::move(world), options);
      if (!runtime.ok()) message = runtime.error().message;
      if (!runtime.ok() || !plan) return;
      const auto checked = (*runtime)->check_head_plan(plan(rank), 0);
      if (!checked.ok()) message = checked.error().message;
    });
    return told;
  }

  test::TempDirectory model_;
  test::TempDirectory other_;
};

TEST_F(RanksThatDiffer, AreNoGroupWithWeightsOfAnotherModelOfTheSameShape) {
  const auto told = start([&](int rank, RankOptions& options) {
    if (rank == 1) options.model_directory = other_.path();
  });
  EXPECT_THAT(told, Each(HasSubstr("the model's fingerprint is '")));
}

TEST_F(RanksThatDiffer, AreNoGroupWithOneOtherNumberInTheMiddleOfAMatrix) {
  const auto config = test::tiny_model_config();
  auto tensors = test::random_tensors(config, 1);
  auto& values = tensors.find("model.layers.0.mlp.up_proj.weight")->second.values;
  values[values.size() / 3] *= 2;
  test::write_checkpoint(config, tensors, DType::kFloat32, other_.path(), 1);
  const auto told = start([&](int rank, RankOptions& options) {
    if (rank == 1) options.model_directory = other_.path();
  });
  EXPECT_THAT(told, Each(HasSubstr("the model's fingerprint is '")));
}

TEST_F(RanksThatDiffer, AreNoGroupWithAnotherGridOfAsManyRanks) {
  const auto told = start([&](int rank, RankOptions& options) {
    if (rank == 1) options.grid = {.tp = 2, .cp = 1};
  });
  EXPECT_THAT(told, Each(HasSubstr("--tp is '1' on rank 0, '2' on rank 1")));
}

TEST_F(RanksThatDiffer, AreNoGroupWithAnotherDtype) {
  const auto told = start([&](int rank, RankOptions& options) {
    if (rank == 1) options.compute_dtype = DType::kBFloat16;
  });
  EXPECT_THAT(told, Each(HasSubstr("--dtype is 'float32' on rank 0, 'bfloat16' on rank 1")));
}

TEST_F(RanksThatDiffer, AreNoGroupWithAnotherPlanInAFileOfTheSameName) {
  model_.write("plan.json", R"({"default": "adaptive"})");
  other_.write("plan.json",
               R"({"default": "adaptive", "layers": [{"heads": {"3": "dense"}}, {"heads": {}}]})");
  const auto told =
      start({}, [&](int rank) { return (rank == 0 ? model_ : other_).file("plan.json"); });
  EXPECT_THAT(told, Each(HasSubstr("the head plan of long prompts is 'adaptive")));
}

TEST_F(RanksThatDiffer, MayHaveTheirFilesInOtherPlaces) {
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 1, other_.path(),
                                /*num_files=*/2);
  std::filesystem::remove(other_.file("model.safetensors"));
  const auto told = start(
      [&](int rank, RankOptions& options) {
        if (rank == 1) options.model_directory = other_.path();
      },
      [](int) { return "adaptive"; });
  EXPECT_THAT(told, Each(""));
}

}  // namespace
}  // namespace millrace::engine
