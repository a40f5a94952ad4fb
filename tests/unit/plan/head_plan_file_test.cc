// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/head_plan.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace millrace::plan {
namespace {

using test::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;

model::ModelConfig model_of(int32_t num_layers, int32_t num_heads) {
  auto config = test::tiny_model_config();
  config.num_layers = num_layers;
  config.num_query_heads = num_heads;
  return config;
}

// For a model of 2 layers and 2 query heads.
Result<HeadPlan> load(std::string_view text, const HeadPlanOptions& options = {}) {
  TempDirectory directory;
  const auto path = directory.write("plan.json", text);
  return make_head_plan(path, model_of(2, 2), 4096, 0, options);
}

std::vector<std::string> patterns(const HeadPlan& plan) {
  std::vector<std::string> texts;
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t head = 0; head < plan.num_heads(); ++head) {
      texts.push_back(format_head_pattern(plan.at(layer, head)));
    }
  }
  return texts;
}

TEST(HeadPlanFile, ReadsMInferencePatternsAndFillsInWhatTheyLeaveOut) {
  const auto plan = load(R"([{"0": ["vertical_and_slash", 30, 800, 336],
                              "1": ["stream_llm", 100, 800, 0.25]},
                             {"1": ["block_sparse", 100, 0, 1.0]}])");
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  EXPECT_THAT(patterns(*plan),
              testing::ElementsAre("vertical-slash:30,800", "a-shape:100,800",
                                   "vertical-slash:1000,6096", "block-sparse:100"));
  EXPECT_THAT(plan->name(), testing::EndsWith("/plan.json"));
}

TEST(HeadPlanFile, ReadsOurOwnFormAndFillsInTheDefault) {
  const auto plan = load(R"({"default": "adaptive:0.9,0.5,4",
                             "layers": [{"heads": {"1": "dense"}},
                                        {"heads": {"0": "a-shape:64,1024"}}]})");
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  EXPECT_THAT(patterns(*plan), testing::ElementsAre("adaptive:0.9,0.5,4", "dense",
                                                    "a-shape:64,1024", "adaptive:0.9,0.5,4"));
}

TEST(HeadPlanFile, WithoutADefaultHeadsAreDense) {
  EXPECT_THAT(patterns(*load("{}")), testing::Each("dense"));
  EXPECT_THAT(patterns(*load(R"({"layers": [{}, {"heads": {"0": "block-sparse:8"}}]})")),
              testing::ElementsAre("dense", "dense", "block-sparse:8", "dense"));
}

TEST(HeadPlanFile, NamesBothCountsWhenItIsForAnotherModel) {
  const std::string head = R"(["vertical_and_slash", 30, 800, 1])";
  const std::string layer = R"({"0": )" + head + R"(, "1": )" + head + "}";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[" + layer + "]", "has 1 layers, the model 2"},
      {"[" + layer + "," + layer + "," + layer + "]", "has 3 layers, the model 2"},
      {R"([{"0": )" + head + R"(}, {"0": )" + head + "}]", "has 1 query heads, the model 2"},
      {R"([{"0": )" + head + R"(}, {"2": )" + head + "}]", "has 3 query heads, the model 2"},
      {"[{}, {}]", "has 0 query heads, the model 2"},
      {R"({"layers": []})", "has 0 layers, the model 2"},
      {R"({"layers": [{"heads": {"31": "dense"}}, {}]})", "has 32 query heads, the model 2"},
      {R"([{"2147483647": )" + head + "}, {}]", "has 2147483648 query heads, the model 2"},
  };
  for (const auto& [text, because] : cases) {
    const auto plan = load(text);
    ASSERT_FALSE(plan.ok()) << text;
    EXPECT_EQ(plan.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(plan.error().message, AllOf(HasSubstr(because), HasSubstr("/plan.json")));
  }
}

TEST(HeadPlanFile, NamesLayerAndHeadOfWhatItCannotRead) {
  const auto minference = [](const std::string& head) { return R"([{}, {"1": )" + head + "}]"; };
  const auto own = [](const std::string& head) {
    return R"({"layers": [{}, {"heads": {"1": )" + head + "}}]}";
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {minference(R"("dense")"), "layer 1, head 1: \"dense\""},
      {minference(R"([])"), "layer 1, head 1: []"},
      {minference(R"([7, 30, 800, 1])"), "expected [pattern"},
      {minference(R"(["vertical_and_slash", 30])"), "expected [pattern"},
      {minference(R"(["vertical_and_slash", 30, 800, 1, 2])"), "expected [pattern"},
      {minference(R"(["vertical_and_slash", 30.5, 800, 1])"), "two integers"},
      {minference(R"(["vertical_and_slash", 30, 99999999999, 1])"), "two integers"},
      {minference(R"(["vertical_and_slash", -30, 800, 1])"), "verticals = -30"},
      {minference(R"(["stream_llm", 30, 0, 1])"), "window = 0"},
      {minference(R"(["triangle", 30, 800, 1])"), "stream_llm"},
      {own("7"), "layer 1, head 1: 7"},
      {own(R"("auto")"), "layer 1, head 1: head plan \"auto\""},
      {own(R"("adaptive:2")"), "gamma = 2"},
      {R"([{"-1": ["stream_llm", 1, 1, 1]}, {}])", "layer 0: \"-1\""},
      {R"([{"one": ["stream_llm", 1, 1, 1]}, {}])", "layer 0: \"one\""},
      {R"([[], {}])", "layer 0"},
      {R"({"layers": {}})", "expected a list"},
      {R"({"layers": [7, {}]})", "layer 0"},
      {R"({"layers": [{"heads": []}, {}]})", "layer 0"},
      {R"({"layers": [{"head": {}}, {}]})", "\"head\""},
      {R"({"defualt": "dense"})", "\"defualt\""},
      {R"({"default": "dense", "default": "auto"})", "duplicate key \"default\""},
      {R"("dense")", "expected a list of layers or an object"},
      {std::string(1000, '['), "JSON"},
      {"", "JSON"},
  };
  for (const auto& [text, because] : cases) {
    SCOPED_TRACE(text.substr(0, 100));
    const auto plan = load(text);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(plan.error().message, AllOf(HasSubstr(because), HasSubstr("/plan.json")));
  }
}

TEST(HeadPlanFile, RefusesAFileOver16MebibytesBeforeParsing) {
  const auto plan = load(std::string((16 << 20) + 1, ' '));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Errc::kTooLarge);
}

TEST(HeadPlanFile, NamesAFileThatIsMissing) {
  const auto plan = make_head_plan("missing-plan.json", model_of(2, 2), 4096, 0);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Errc::kNotFound);
  EXPECT_THAT(plan.error().message, HasSubstr("missing-plan.json"));
}

TEST(HeadPlanFile, IsNotReadWhenPlansComeFromARequest) {
  const auto plan = load("{}", {.allow_files = false});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(plan.error().message, HasSubstr("expected one of dense"));
  EXPECT_TRUE(make_head_plan("dense", model_of(2, 2), 4096, 0, {.allow_files = false}).ok());
}

}  // namespace
}  // namespace millrace::plan
