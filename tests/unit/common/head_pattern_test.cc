#include "common/head_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace {
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
      {"adaptive",
       {.pattern = Pattern::kAdaptive, .gamma = 0.8f, .row_outliers = 4, .page_outliers = 4}},
      {"adaptive:0.95",
       {.pattern = Pattern::kAdaptive, .gamma = 0.95f, .row_outliers = 4, .page_outliers = 4}},
      {"adaptive:1,8,0",
       {.pattern = Pattern::kAdaptive, .gamma = 1, .row_outliers = 8, .page_outliers = 0}},
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
        "adaptive:0.8,4,2", "adaptive:0.333333,0,16"}) {
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
                                 "adaptive:0.8,4",
                                 "adaptive:0.8,4,2,1",
                                 "adaptive:high",
                                 "auto"}) {
    const auto head = parse_head_pattern(text);
    ASSERT_FALSE(head.ok()) << text;
    EXPECT_EQ(head.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(head.error().message, HasSubstr("\"" + text + "\""));
    EXPECT_THAT(head.error().message, HasSubstr("vertical-slash:V,S"));
  }
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
      {"adaptive:0.8,17,2", "row outliers = 17"},
      {"adaptive:0.8,4,-1", "page outliers = -1"},
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
}  // namespace millrace
