// SPDX-License-Identifier: Apache-2.0
#include "plan/head_plan_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/head_plan_json.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace millrace::plan {
namespace {

// Two layers of three heads.
HeadPlan plan_of(std::initializer_list<const char*> texts) {
  HeadPlan plan(2, 3, {});
  int32_t number = 0;
  for (const auto* text : texts) {
    plan.at(number / 3, number % 3) = *parse_head_pattern(text);
    ++number;
  }
  return plan;
}

// As a prefill reads it.
HeadPlan read_back(const std::string& text) {
  test::TempDirectory directory;
  auto config = test::tiny_model_config();
  config.num_layers = 2;
  config.num_query_heads = 3;
  auto plan = load_head_plan(directory.write("plan.json", text), config);
  MR_CHECK(plan.ok(), "{}", plan.error().to_string());
  plan->set_name("");
  return *plan;
}

TEST(HeadPlanWriter, WritesEveryPatternSoThatItIsReadAgain) {
  const auto plan = plan_of({"adaptive:0.123,0.8,16", "dense", "a-shape:64,1024",
                             "vertical-slash:30,800", "block-sparse:7", "elastic:-64,0.25"});
  EXPECT_EQ(read_back(plan_json(plan)), plan);
}

TEST(HeadPlanWriter, NamesOnlyHeadsThatDifferFromTheMost) {
  const auto plan = plan_of({"dense", "adaptive", "dense", "dense", "dense", "block-sparse:7"});
  const auto text = plan_json(plan);
  EXPECT_EQ(read_back(text), plan);
  EXPECT_THAT(text, testing::HasSubstr(R"("default": "dense")"));
  EXPECT_THAT(text, testing::HasSubstr(R"({"1": "adaptive:0.2,0.8,24"})"));
  EXPECT_THAT(text, testing::HasSubstr(R"({"2": "block-sparse:7"})"));
}

TEST(HeadPlanWriter, WritesMInferencesFormForItsPatterns) {
  const auto plan = plan_of({"vertical-slash:30,800", "a-shape:64,1024", "block-sparse:7",
                             "vertical-slash:1000,6096", "a-shape:1,1", "block-sparse:1"});
  const std::vector<double> scores{1, 0.5, 0.25, 0, 0.75, 1};
  const auto text = minference_plan_json(plan, scores);
  ASSERT_TRUE(text.ok()) << text.error().to_string();
  EXPECT_EQ(read_back(*text), plan);
  EXPECT_THAT(*text, testing::HasSubstr(R"("1": ["stream_llm", 64, 1024, 0.5000])"));
}

TEST(HeadPlanWriter, NamesTheHeadThatMInferenceCannotHave) {
  for (const char* pattern : {"dense", "adaptive", "elastic:64,0.5"}) {
    const auto plan = plan_of(
        {"a-shape:1,1", "a-shape:1,1", "a-shape:1,1", "a-shape:1,1", "a-shape:1,1", pattern});
    const auto text = minference_plan_json(plan, std::vector<double>(6, 1));
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.error().code, Errc::kUnsupported);
    EXPECT_THAT(text.error().message, testing::HasSubstr("layer 1, head 2"));
    EXPECT_THAT(text.error().message, testing::HasSubstr(std::string(pattern).substr(0, 5)));
  }
}

}  // namespace
}  // namespace millrace::plan
