// SPDX-License-Identifier: Apache-2.0
#include "plan/head_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace millrace::plan {
namespace {

using testing::HasSubstr;

TEST(HeadPattern, ReadsEveryTextForm) {
  const std::vector<std::pair<std::string, HeadPattern>> cases{
      {"dense", {.pattern = Pattern::kDense}},
      {"a-shape:64,1024", {.pattern = Pattern::kAShape, .sink = 64, .window = 1024}},
      {"vertical-slash:1000,6096",
       {.pattern = Pattern::kVerticalSlash, .verticals = 1000, .slashes = 6096}},
      {"block-sparse:100", {.pattern = Pattern::kBlockSparse, .top_k = 100}},
      {"elastic:-2048,0.125", {.pattern = Pattern::kElastic, .alpha = -2048, .beta = 0.125f}},
      {"adaptive", {.pattern = Pattern::kAdaptive}},
      {"adaptive:0.5", {.pattern = Pattern::kAdaptive, .gamma = 0.5f}},
      {"adaptive:0.5,0.9", {.pattern = Pattern::kAdaptive, .gamma = 0.5f, .enough = 0.9f}},
      {"adaptive:1,1,64",
       {.pattern = Pattern::kAdaptive, .gamma = 1, .enough = 1, .sampled_rows = 64}},
  };
  for (const auto& [text, expected] : cases) {
    const auto head = parse_head_pattern(text);
    ASSERT_TRUE(head.ok()) << head.error().to_string();
    EXPECT_EQ(*head, expected) << text;
  }
}

TEST(HeadPattern, TextFormReadsBackAsTheSamePattern) {
  for (const std::string text :
       {"dense", "a-shape:0,1", "vertical-slash:30,800", "block-sparse:1", "elastic:8192,0.3",
        "adaptive:0.3,0.8,11", "adaptive:0.333333,1,1"}) {
    const auto head = parse_head_pattern(text);
    ASSERT_TRUE(head.ok()) << head.error().to_string();
    EXPECT_EQ(format_head_pattern(*head), text);
    EXPECT_EQ(*parse_head_pattern(format_head_pattern(*head)), *head);
  }
}

TEST(HeadPattern, SaysWhichFormsExistWhenItReadsNone) {
  for (const std::string text : {"",
                                 "sparse",
                                 "Dense",
                                 "dense:",
                                 "dense:1",
                                 "a-shape",
                                 "a-shape:",
                                 "a-shape:64",
                                 "a-shape:64,",
                                 "a-shape:,64",
                                 "a-shape:64,1024,1",
                                 "a-shape:64;1024",
                                 "a-shape:64, 1024",
                                 "a-shape:0x40,1024",
                                 "a-shape:64,1e3",
                                 "vertical-slash:99999999999,1",
                                 "block-sparse:1.5",
                                 "elastic:1",
                                 "elastic:1,x",
                                 "adaptive:",
                                 "adaptive:0.8,,16",
                                 "adaptive:0.8,0.9,16,1",
                                 "adaptive:0.8,0.9,1.5",
                                 "adaptive:high",
                                 "auto"}) {
    const auto head = parse_head_pattern(text);
    ASSERT_FALSE(head.ok()) << text;
    EXPECT_EQ(head.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(head.error().message, HasSubstr("\"" + text + "\""));
    EXPECT_THAT(head.error().message, HasSubstr("vertical-slash:V,S"));
  }
}

TEST(HeadPattern, SaysWhichArgumentIsMissingOrWrong) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"vertical-slash", "verticals is missing"},
      {"vertical-slash:256", "slashes is missing"},
      {"a-shape:,64", "sink is missing"},
      {"elastic:1", "beta is missing"},
      {"block-sparse:1.5", "top_k is \"1.5\", expected an integer"},
      {"adaptive:high", "gamma is \"high\", expected a number"},
      {"a-shape:1,2,3", "3 arguments, expected 2"},
      {"sparse:1", "unknown pattern"},
  };
  for (const auto& [text, because] : cases) {
    const auto head = parse_head_pattern(text);
    ASSERT_FALSE(head.ok()) << text;
    EXPECT_THAT(head.error().message, HasSubstr(because));
  }
}

TEST(HeadPattern, MinimumRecallIsAShare) {
  for (const float recall : {-0.1F, 1.5F, std::nanf("")}) {
    EXPECT_FALSE(checked_head_pattern({.min_recall = recall}).ok()) << recall;
  }
  EXPECT_TRUE(checked_head_pattern({.min_recall = 0.9F}).ok());
}

TEST(HeadPattern, NamesTheNumberThatIsOutOfRange) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a-shape:-1,64", "sink = -1"},
      {"a-shape:65537,64", "sink = 65537"},
      {"a-shape:0,0", "window = 0"},
      {"a-shape:0,2000000000", "window = 2e+09"},
      {"vertical-slash:-1,64", "verticals = -1"},
      {"vertical-slash:65537,64", "verticals = 65537"},
      {"vertical-slash:64,65537", "slashes = 65537"},
      {"block-sparse:0", "top_k = 0"},
      {"block-sparse:65537", "top_k = 65537"},
      {"elastic:-2000000000,0", "alpha = -2e+09"},
      {"elastic:0,1.5", "beta = 1.5"},
      {"elastic:0,-0.5", "beta = -0.5"},
      {"elastic:0,nan", "beta = nan"},
      {"adaptive:0", "gamma = 0"},
      {"adaptive:1.01", "gamma = 1.01"},
      {"adaptive:nan", "gamma = nan"},
      {"adaptive:inf", "gamma = inf"},
      {"adaptive:0.8,0", "enough = 0"},
      {"adaptive:0.8,2", "enough = 2"},
      {"adaptive:0.8,0.9,0", "rows = 0"},
      {"adaptive:0.8,0.9,128", "rows = 128"},
      {"adaptive:0.8,0.9,65", "rows = 65, expected 1 to 64"},
  };
  for (const auto& [text, because] : cases) {
    const auto head = parse_head_pattern(text);
    ASSERT_FALSE(head.ok()) << text;
    EXPECT_EQ(head.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(head.error().message, HasSubstr(because));
  }
}

TEST(HeadPattern, ARequestMayNameAPatternOrAutoButNoFile) {
  for (const std::string text : {"auto", "dense", "adaptive:0.8", "a-shape:64,1024"}) {
    EXPECT_TRUE(check_plan_text(text).ok()) << text;
  }
  for (const std::string text : {"", "dens", "Auto", "auto:1", "plan.json", "/etc/passwd"}) {
    EXPECT_EQ(check_plan_text(text).error().code, Errc::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace millrace::plan
