// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/trace.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace millrace::bench {
namespace {

using ::testing::HasSubstr;

class TraceTest : public ::testing::Test {
 protected:
  ~TraceTest() override { std::filesystem::remove(path_); }
  Result<Trace> read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_trace(path_);
  }

  const std::string path_ = ::testing::TempDir() + "trace.jsonl";
};

TEST_F(TraceTest, BothFormatsAreReadAndSorted) {
  const auto trace = read(
      "{\"at_s\": 12.5, \"tokens\": 300, \"owner\": \"a\", \"priority\": -3}\n\n"
      "{\"timestamp\": 2500, \"input_length\": 7, \"output_length\": 1, \"hash_ids\": [1, 2]}\n");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].num_tokens, 7);
  EXPECT_EQ((*trace)[0].at_s, 0);
  EXPECT_EQ((*trace)[1].at_s, 10);
  EXPECT_EQ((*trace)[1].owner, "a");
  EXPECT_EQ((*trace)[0].priority, 0);
  EXPECT_EQ((*trace)[1].priority, -3);
}

TEST_F(TraceTest, NonsenseIsRefusedByLine) {
  for (const char* line :
       {"{", "[]", "7", "{}", "{\"at_s\": 1}", "{\"tokens\": 1}", "{\"at_s\": -1, \"tokens\": 1}",
        "{\"at_s\": 1e300, \"tokens\": 1}", "{\"at_s\": 1, \"tokens\": 0}",
        "{\"at_s\": 1, \"tokens\": 1e18}", "{\"at_s\": \"1\", \"tokens\": 1}",
        "{\"at_s\": 1, \"tokens\": 1, \"owner\": 5}",
        "{\"at_s\": 1, \"tokens\": 1, \"priority\": 0.5}",
        "{\"at_s\": 1, \"tokens\": 1, \"priority\": 1001}"}) {
    const auto trace = read(std::string("{\"at_s\": 1, \"tokens\": 1}\n") + line);
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_THAT(trace.error().message, HasSubstr("trace.jsonl:2: ")) << line;
  }
  EXPECT_FALSE(read("").ok());
  EXPECT_EQ(read_trace("/no/such/file").error().code, Errc::kIo);
}

// The share of shorter prompts is a mean of 100,000 draws, with a standard error of at most .0016.
TEST(DrawTrace, LengthsAreAsPublished) {
  const Trace trace = draw_trace({.num_requests = 100'000, .requests_per_s = 4, .seed = 3});
  const auto share_under = [&trace](int64_t tokens) {
    const auto shorter = std::count_if(trace.begin(), trace.end(),
                                       [&](const auto& a) { return a.num_tokens < tokens; });
    return static_cast<double>(shorter) / static_cast<double>(trace.size());
  };
  EXPECT_NEAR(share_under(8 << 10), 0.18, 0.008);
  EXPECT_NEAR(share_under(67'000), 0.50, 0.008);
  EXPECT_NEAR(share_under(256 << 10), 0.965, 0.008);
  EXPECT_EQ(share_under((1 << 20) + 1), 1);
  EXPECT_NEAR(trace.back().at_s, 25'000, 400);  // five standard errors
}

TEST(DrawTrace, ASeedIsATrace) {
  const auto lengths = [](uint64_t seed) {
    std::vector<int64_t> out;
    for (const auto& a : draw_trace({.num_requests = 10, .seed = seed}))
      out.push_back(a.num_tokens);
    return out;
  };
  EXPECT_EQ(lengths(5), lengths(5));
  EXPECT_NE(lengths(5), lengths(6));
}

}  // namespace
}  // namespace millrace::bench
