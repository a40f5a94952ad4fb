// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/block_sparse/page_choice.h"

#include <cmath>

#include "kernels/cpu/estimation/ranking.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels_cuda/choice_case.h"

namespace millrace::kernels::cuda {
namespace {

class PageChoice : public ChoiceCase {
 protected:
  // [kNumTiles, page_stride]
  template <typename Value>
  static std::vector<float> scores_of(int32_t num_pages, const Value& value) {
    std::vector<float> scores;
    const int64_t count = kNumTiles * page_stride(num_pages);
    for (int64_t i = 0; i < count; ++i) scores.push_back(value(static_cast<uint64_t>(i)));
    return scores;
  }

  PageLists best(const std::vector<float>& scores, int32_t num_pages, int32_t top_k) {
    const DeviceArray<float> values(scores);
    const DeviceArray<int32_t> top(std::vector<int32_t>{top_k});
    return choose(num_pages, 1, [&](const ChoiceTiles& tiles) {
      launch_choose_best({.tiles = tiles, .scores = values.data(), .top_k = top.data()}, stream());
    });
  }

  // As the CPU chooses.
  static PageLists expected_best(const std::vector<float>& scores, int32_t num_pages,
                                 int32_t top_k) {
    PageLists lists;
    for (int64_t tile = 0; tile < kNumTiles; ++tile) {
      cpu::Ranking ranking;
      ranking.add_forced(0);
      for (int32_t page = 1; page < num_pages; ++page) {
        if (page == num_pages - 1) {
          ranking.add_forced(page);
        } else {
          ranking.add(page, scores[static_cast<size_t>(tile * page_stride(num_pages) + page)]);
        }
      }
      std::vector<int32_t> list;
      ranking.best(static_cast<size_t>(std::max(top_k, 2)), list);
      lists.push_back(sorted(list));
    }
    return lists;
  }
};

TEST_F(PageChoice, TakesTheBestAsTheCpuDoes) {
  for (const int32_t num_pages : kPageCounts) {
    SCOPED_TRACE(num_pages);
    const auto distinct =
        scores_of(num_pages, [](uint64_t i) { return test::random_normal(64, i); });
    const auto ties = scores_of(
        num_pages, [](uint64_t i) { return static_cast<float>(test::random_bits(65, i) % 5) - 2; });
    for (const int32_t top_k : {1, 2, 3, 33, 100, 1023, 60000}) {
      EXPECT_EQ(best(distinct, num_pages, top_k), expected_best(distinct, num_pages, top_k))
          << top_k;
      EXPECT_EQ(best(ties, num_pages, top_k), expected_best(ties, num_pages, top_k)) << top_k;
    }
  }
}

TEST_F(PageChoice, RanksNotANumberFirstAndZerosAlike) {
  auto scores = scores_of(500, [](uint64_t i) { return i % 2 == 0 ? 0.0F : -0.0F; });
  for (const size_t at : {77, 200, 340}) scores[at] = std::nanf("");
  for (const int32_t top_k : {3, 4, 5, 40, 300}) {
    EXPECT_EQ(best(scores, 500, top_k), expected_best(scores, 500, top_k)) << top_k;
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
