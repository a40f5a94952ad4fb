// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/equal_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

using testing::Each;
using testing::ElementsAre;

// What each of three ranks is told; "" for nothing.
std::vector<std::string> compare(const std::function<std::string(int rank)>& version,
                                 const std::function<std::vector<NamedValue>(int rank)>& values) {
  std::vector<std::string> told(3);
  test::run_ranks(3, [&](std::unique_ptr<comm::Communicator> world) {
    const int rank = world->rank();
    const auto equal = require_equal(*world, version(rank), values(rank),
                                     Deadline::after(std::chrono::seconds(60)));
    if (!equal.ok()) told[static_cast<size_t>(rank)] = equal.error().message;
  });
  return told;
}

std::string same_version(int) {
  return "1.2.3";
}

TEST(EqualValues, OfAllRanksAreRight) {
  const auto told = compare(same_version, [](int) -> std::vector<NamedValue> {
    return {{"--tp", "2"}, {"--cp", "4"}, {"nothing", ""}};
  });
  EXPECT_THAT(told, ElementsAre("", "", ""));
}

TEST(EqualValues, TheFirstThatDiffersIsNamedOnAllRanksWithWhoHasWhich) {
  const auto told = compare(same_version, [](int rank) -> std::vector<NamedValue> {
    return {{"--tp", "2"}, {"--cp", rank == 2 ? "8" : "4"}, {"--dtype", rank == 1 ? "a" : "b"}};
  });
  EXPECT_THAT(told,
              Each("the ranks of a group must be started alike: --cp is '4' on rank 0, '8' on "
                   "rank 2"));
}

TEST(EqualValues, LongOnesAreComparedToTheirEnd) {
  const auto told = compare(same_version, [](int rank) -> std::vector<NamedValue> {
    return {{"plan", std::string(500, 'x') + (rank == 0 ? "1" : "2")}};
  });
  EXPECT_THAT(told, Each(testing::HasSubstr("plan is 'xxx")));
}

// Another version may compare other values, in another order.
TEST(EqualValues, RanksOfAnotherVersionNeedNotHaveTheSameNames) {
  const auto told = compare([](int rank) { return rank == 0 ? "1.2.3" : "1.3.0"; },
                            [](int rank) {
                              return rank == 0
                                         ? std::vector<NamedValue>{{"--tp", "2"}}
                                         : std::vector<NamedValue>{{"--new", "1"}, {"--tp", "2"}};
                            });
  EXPECT_THAT(told, Each("the ranks of a group must be started alike: the version is '1.2.3' on "
                         "rank 0, '1.3.0' on rank 1"));
}

}  // namespace
}  // namespace millrace::engine
