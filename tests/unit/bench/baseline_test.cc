// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/baseline.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_directory.h"

namespace millrace::bench {
namespace {

class BaselineTest : public testing::Test {
 protected:
  Result<Baseline> load(const std::string& text) const {
    const auto path = directory_.path() + "/baseline.json";
    std::ofstream(path) << text;
    return Baseline::load(path);
  }
  test::TempDirectory directory_;
};

TEST_F(BaselineTest, FindsARowByTokensAndPlanWhereverThePlansFileLies) {
  const auto baseline = load(R"({"ranks": 1, "rows": [
    {"tokens": 4096, "plan": "dense", "total_s": 1.0, "attention_flops": 4e12, "phases_s": {"attention": 0.5}},
    {"tokens": 8192, "plan": "plans/llama.json", "total_s": 3, "attention_flops": 4e12, "phases_s": {"embed": 1}}]})");
  ASSERT_TRUE(baseline.ok()) << baseline.error().message;
  ASSERT_NE(baseline->find(8192, "/other/llama.json"), nullptr);
  EXPECT_EQ(baseline->find(8192, "/other/llama.json")->total_s, 3);
  EXPECT_EQ(baseline->find(8192, "/other/llama.json")->attention_tflops, 0);
  EXPECT_DOUBLE_EQ(baseline->find(4096, "dense")->attention_tflops, 8);
  EXPECT_EQ(baseline->find(4096, "llama.json"), nullptr);
  EXPECT_EQ(baseline->find(8192, "dense"), nullptr);
}

TEST_F(BaselineTest, EfficiencyComparesRankSeconds) {
  const Baseline::Row row{.num_ranks = 2, .total_s = 10};
  EXPECT_DOUBLE_EQ(row.efficiency(/*total_s=*/3.125, /*num_ranks=*/8), 0.8);
}

TEST_F(BaselineTest, SaysWhichFileIsNoResult) {
  const auto missing = Baseline::load(directory_.path() + "/none.json");
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
  for (const char* text : {"", "[]", "{}", R"({"ranks": 1, "rows": [{}]})",
                           R"({"ranks": "one", "rows": []})", R"({"ranks": 1, "rows": [1]})"}) {
    SCOPED_TRACE(text);
    const auto baseline = load(text);
    ASSERT_FALSE(baseline.ok());
    EXPECT_EQ(baseline.error().code, Errc::kInvalidArgument);
    EXPECT_NE(baseline.error().message.find("baseline.json"), std::string::npos);
  }
}

TEST_F(BaselineTest, PlansGoByTheirTextOrTheNameOfTheirFile) {
  EXPECT_EQ(plan_label("adaptive:0.9"), "adaptive:0.9");
  EXPECT_EQ(plan_label("llama3.json"), "llama3");
  EXPECT_EQ(plan_label("some/where/llama-3.1.json"), "llama-3.1");
}

}  // namespace
}  // namespace millrace::bench
