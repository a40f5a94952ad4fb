// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/agreement.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

// What each of four ranks gets, by rank: the values that it was given, or an error.
using Outcomes = std::vector<std::string>;

Outcomes agree_on(const std::function<Result<int>(int rank)>& own) {
  Outcomes outcomes(4);
  test::run_ranks(4, [&](std::unique_ptr<comm::Communicator> world) {
    const auto values =
        all_agree_on_values(*world, own(world->rank()), Deadline::after(std::chrono::seconds(60)));
    auto& outcome = outcomes[static_cast<size_t>(world->rank())];
    if (!values.ok()) outcome = values.error().message;
    for (size_t i = 0; values.ok() && i < values->size(); ++i) {
      outcome += fmt::format("{} ", (*values)[i]);
    }
  });
  return outcomes;
}

TEST(Agreement, BringsTheValuesOfAllRanksToEachWhenAllHaveOne) {
  EXPECT_EQ(agree_on([](int rank) { return Result<int>(10 * rank); }), Outcomes(4, "0 10 20 30 "));
}

TEST(Agreement, IsTheErrorOfTheLowestRankThatFailsOnAllAndNoValue) {
  const auto outcomes = agree_on([](int rank) -> Result<int> {
    if (rank == 0) return 7;
    if (rank == 1) return error(Errc::kIo, "disk {} is full", rank);
    return error(Errc::kExhausted, "no room on {}", rank);
  });
  EXPECT_EQ(outcomes, Outcomes(4, "rank 1: disk 1 is full"));
}

TEST(Agreement, CutsALongMessageAndKeepsTheValuesApart) {
  const std::string long_text(2000, 'x');
  const auto outcomes = agree_on([&](int rank) -> Result<int> {
    if (rank == 3) return error(Errc::kIo, "{}", long_text);
    return rank;
  });
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.starts_with("rank 3: xxx")) << outcome;
    EXPECT_EQ(outcome.find_first_not_of('x', 8), std::string::npos) << outcome;
    EXPECT_LT(outcome.size(), size_t{600});
  }
}

}  // namespace
}  // namespace millrace::engine
