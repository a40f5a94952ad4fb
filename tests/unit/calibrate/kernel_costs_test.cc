// SPDX-License-Identifier: Apache-2.0
#include "calibrate/kernel_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace millrace::calibrate {
namespace {

const KernelCosts kCosts{
    .device = "cpu \"2\"",
    .shape = {.num_query_heads = 8, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kBFloat16},
    .num_tokens = 4096,
    .listed_block = 1.189,
    .gathered_block = 1.414,
    .probed_page = 2,
    .pooled_block = 0.007812,
    .sampled_block = 0.01487};

TEST(KernelCosts, ComeBackFromTheirFile) {
  const auto read = parse_costs(costs_json(kCosts));
  ASSERT_TRUE(read.ok()) << read.error().to_string();
  EXPECT_EQ(*read, kCosts);
}

TEST(KernelCosts, AreSteppedSoThatNoiseRarelyMovesThem) {
  for (const double cost : {0.004, 0.7, 1.0, 1.3, 90.0}) {
    const double stepped = rounded_cost(cost);
    EXPECT_LE(std::abs(std::log2(stepped / cost)), 0.125 + 1e-3) << cost;
    EXPECT_EQ(rounded_cost(stepped), stepped) << cost;
    EXPECT_EQ(rounded_cost(stepped * 1.05), stepped) << cost;
    EXPECT_EQ(rounded_cost(stepped * 0.95), stepped) << cost;
  }
}

TEST(KernelCosts, NameTheFieldThatIsWrong) {
  const auto text = costs_json(kCosts);
  const auto with = [&](const std::string& from, const std::string& to) {
    auto changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {with("1.414", "0"), "gathered_block"},
      {with("1.414", "\"a\""), "gathered_block"},
      {with("1.414", "1e7"), "gathered_block"},
      {with("bfloat16", "int8"), "dtype"},
      {with("4096", "-1"), "tokens"},
      {with("4096", "1.5"), "tokens"},
      {with("\"device\"", "\"machine\""), "device"},
      {"[]", "object"},
      {"{", "JSON"},
      {"", "JSON"}};
  for (const auto& [changed, because] : cases) {
    const auto read = parse_costs(changed);
    ASSERT_FALSE(read.ok()) << changed;
    EXPECT_EQ(read.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(read.error().message, testing::HasSubstr(because));
  }
}

}  // namespace
}  // namespace millrace::calibrate
