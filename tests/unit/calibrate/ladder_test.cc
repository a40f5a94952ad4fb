// SPDX-License-Identifier: Apache-2.0
#include "calibrate/ladder.h"

#include <gtest/gtest.h>

namespace millrace::calibrate {
namespace {

// What a rung asks for, in keys or shares. It grows along a ladder.
double budget(const plan::HeadPattern& pattern) {
  switch (pattern.pattern) {
    case plan::Pattern::kAShape:
      return pattern.sink + pattern.window;
    case plan::Pattern::kVerticalSlash:
      return pattern.verticals + pattern.slashes;
    case plan::Pattern::kBlockSparse:
      return pattern.top_k;
    case plan::Pattern::kAdaptive:
      return double{pattern.gamma} + double{pattern.enough};
    case plan::Pattern::kDense:
    case plan::Pattern::kElastic:
      break;
  }
  return 0;
}

TEST(Ladder, RisesFromRungToRung) {
  for (const int64_t num_tokens : {65, 4096, 1'000'000}) {
    for (const auto& ladder : make_ladders(kSearchedPatterns, num_tokens)) {
      for (size_t rung = 1; rung < ladder.size(); ++rung) {
        EXPECT_LT(budget(ladder[rung - 1]), budget(ladder[rung]))
            << plan::format_head_pattern(ladder[rung]) << " of " << num_tokens;
      }
    }
  }
}

// A plan file holds patterns as text, which must mean the same patterns.
TEST(Ladder, HasPatternsThatAPlanMayHave) {
  for (const int64_t num_tokens : {65, 4096, 1'000'000}) {
    for (const auto& ladder : make_ladders(kSearchedPatterns, num_tokens)) {
      for (const auto& pattern : ladder) {
        const auto read = plan::parse_head_pattern(plan::format_head_pattern(pattern));
        ASSERT_TRUE(read.ok()) << read.error().to_string();
        EXPECT_EQ(*read, pattern);
      }
    }
  }
}

TEST(Ladder, HasOnlyWhatMayBeChosen) {
  const plan::Pattern only[] = {plan::Pattern::kBlockSparse};
  const auto ladders = make_ladders(only, 4096);
  ASSERT_EQ(ladders.size(), 1);
  EXPECT_EQ(ladders[0].front().top_k, 1);
  EXPECT_EQ(ladders[0].back().top_k, 64);
}

}  // namespace
}  // namespace millrace::calibrate
