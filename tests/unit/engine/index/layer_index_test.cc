// SPDX-License-Identifier: Apache-2.0
#include "engine/index/layer_index.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"

namespace millrace::engine {
namespace {

using plan::HeadPattern;
using plan::Pattern;

int64_t bytes_of(const plan::HeadPlan& plan, int64_t num_tokens) {
  const auto device = kernels::make_cpu_device({.num_threads = 1});
  const auto index = LayerIndex::create(*device, plan, 0, plan.num_heads(), num_tokens,
                                        kernels::tile_rows(num_tokens));
  EXPECT_TRUE(index.ok());
  return index.ok() ? index->bytes() : 0;
}

// The largest budgets in MInference's file for Llama 3 8B.
plan::HeadPlan llama3_plan() {
  plan::HeadPlan plan(
      1, 32,
      plan::HeadPattern{.pattern = Pattern::kVerticalSlash, .verticals = 1000, .slashes = 6096});
  plan.at(0, 7) = {.pattern = Pattern::kVerticalSlash, .verticals = 3500, .slashes = 100};
  return plan;
}

TEST(LayerIndex, BandsAndColumnsTakeLessThanAMegabyteALayerAtAnyLength) {
  for (const int64_t num_tokens : {int64_t{131072}, int64_t{1} << 20, int64_t{4} << 20}) {
    EXPECT_LT(bytes_of(llama3_plan(), num_tokens), 1'000'000) << num_tokens;
  }
}

TEST(LayerIndex, ShortPromptsTakeWhatTheyCanFill) {
  // At most 65 bands and 1,000 columns.
  const plan::HeadPlan plan(
      1, 1,
      plan::HeadPattern{.pattern = Pattern::kVerticalSlash, .verticals = 1000, .slashes = 6096});
  EXPECT_LE(bytes_of(plan, 4096), 65 * 8 + 1000 * 4 + 1024);
}

TEST(LayerIndex, BlocksTakeThreeQuartersOfTheCausalBlocksAndHalfOfThoseOfLongPrompts) {
  const plan::HeadPlan plan(1, 2, plan::HeadPattern{.pattern = Pattern::kAdaptive});
  for (const auto& [num_tokens, share] :
       {std::pair(int64_t{8192}, 0.75), {int64_t{1} << 20, 0.5}}) {
    const double num_tiles = static_cast<double>(num_tokens) / 64;
    const double bytes = 2 * share * num_tiles * (num_tiles + 1) / 2 * 4;
    EXPECT_GE(static_cast<double>(bytes_of(plan, num_tokens)), 0.99 * bytes) << num_tokens;
    // Includes the counts and places of the tiles, and 128 more blocks for each tile of the long
    // prompt.
    EXPECT_LE(static_cast<double>(bytes_of(plan, num_tokens)), 1.1 * bytes) << num_tokens;
  }
}

}  // namespace
}  // namespace millrace::engine
