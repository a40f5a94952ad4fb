// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/group_times.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

namespace millrace::bench {
namespace {

using ::testing::HasSubstr;

TEST(GroupTimes, FollowAPowerBetweenAndBeyondMeasuredLengths) {
  const GroupTimes times{.num_gpus = 1, .tokens = {100, 1000, 10000}, .seconds = {1, 10, 1000}};
  EXPECT_NEAR(times.seconds_of(100), 1, 1e-9);
  EXPECT_NEAR(times.seconds_of(500), 5, 1e-9);
  EXPECT_NEAR(times.seconds_of(2000), 40, 1e-9);
  EXPECT_NEAR(times.seconds_of(20000), 4000, 1e-9);
  EXPECT_NEAR(times.seconds_of(1), 1, 1e-9);
}

class GroupTimesFile : public ::testing::Test {
 protected:
  ~GroupTimesFile() override { std::filesystem::remove(path_); }
  auto read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_group_times(path_);
  }

  const std::string path_ = ::testing::TempDir() + "times.json";
};

TEST_F(GroupTimesFile, KindsAreReadAndCommentsAreNot) {
  const auto kinds =
      read(R"({"source": "here", "a": {"gpus": 2, "tokens": [1, 2], "seconds": [0.5, 1]}})");
  ASSERT_TRUE(kinds.ok()) << kinds.error().message;
  ASSERT_EQ(kinds->size(), 1u);
  EXPECT_EQ(kinds->at("a").num_gpus, 2);
}

TEST_F(GroupTimesFile, ALaneIsAsFastAsTheKindThatItNames) {
  const auto kinds = read(R"({"one": {"gpus": 1, "tokens": [1, 2], "seconds": [3, 4]},
                              "two": {"gpus": 2, "lane": "one", "tokens": [1, 2], "seconds": [1, 2]}})");
  ASSERT_TRUE(kinds.ok()) << kinds.error().message;
  EXPECT_EQ(kinds->at("one").lane, nullptr);
  ASSERT_NE(kinds->at("two").lane, nullptr);
  EXPECT_NEAR(kinds->at("two").lane->seconds_of(1), 3, 1e-9);
}

TEST_F(GroupTimesFile, LayersAndOverheadAreThoseOfAnEightBillionModelUnlessSaid) {
  const auto kinds = read(R"({"one": {"gpus": 1, "tokens": [1, 2], "seconds": [3, 4]},
                              "two": {"gpus": 1, "layers": 5, "layers_ahead": 1, "preempt_s": -0.1, "between_s": 0.01, "overhead_s": 0, "tokens": [1, 2], "seconds": [1, 2]}})");
  ASSERT_TRUE(kinds.ok()) << kinds.error().message;
  EXPECT_EQ(kinds->at("one").num_layers, 32);
  EXPECT_EQ(kinds->at("one").overhead_s, 0.02);
  EXPECT_EQ(kinds->at("one").layers_ahead, 0);
  EXPECT_EQ(kinds->at("one").preempt_s, 0);
  EXPECT_EQ(kinds->at("one").between_s, 0);
  EXPECT_EQ(kinds->at("two").num_layers, 5);
  EXPECT_EQ(kinds->at("two").layers_ahead, 1);
  EXPECT_EQ(kinds->at("two").preempt_s, -0.1);
  EXPECT_EQ(kinds->at("two").between_s, 0.01);
  EXPECT_EQ(kinds->at("two").overhead_s, 0);
}

TEST_F(GroupTimesFile, NonsenseIsRefusedByName) {
  for (const char* kind : {"{}", R"({"gpus": 0, "tokens": [1, 2], "seconds": [1, 2]})",
                           R"({"gpus": 1, "tokens": [1], "seconds": [1]})",
                           R"({"gpus": 1, "tokens": [2, 1], "seconds": [1, 2]})",
                           R"({"gpus": 1, "tokens": [1, 2], "seconds": [1, 1]})",
                           R"({"gpus": 1, "tokens": [0, 2], "seconds": [1, 2]})",
                           R"({"gpus": 1, "layers": 0, "tokens": [1, 2], "seconds": [1, 2]})",
                           R"({"gpus": 1, "layers": 5.5, "tokens": [1, 2], "seconds": [1, 2]})",
                           R"({"gpus": 1, "overhead_s": -1, "tokens": [1, 2], "seconds": [1, 2]})",
                           R"({"gpus": 1, "overhead_s": "0", "tokens": [1, 2], "seconds": [1, 2]})",
                           R"({"gpus": 1, "lane": "?", "tokens": [1, 2], "seconds": [1, 2]})",
                           R"({"gpus": 1, "lane": 7, "tokens": [1, 2], "seconds": [1, 2]})",
                           R"({"gpus": 1, "tokens": [1, "2"], "seconds": [1, 2]})"}) {
    const auto kinds = read(std::string("{\"sick\": ") + kind + "}");
    ASSERT_FALSE(kinds.ok()) << kind;
    EXPECT_THAT(kinds.error().message, HasSubstr("'sick'")) << kind;
  }
  EXPECT_FALSE(read("[]").ok());
}

}  // namespace
}  // namespace millrace::bench
