#include "kernels/cuda/estimation/page_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/units.h"
#include "kernels/cpu/ranking.h"
#include "kernels/cuda/estimation/representative_scores.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

// Scores of one head's tiles, all of which see num_pages pages.
struct Scores {
  int32_t num_pages = 0;
  int32_t rows_per_tile = 1;
  int64_t num_tiles = 1;
  std::vector<float> values = {};     // [num_tiles, rows_per_tile, page_stride]
  std::vector<float> exponents = {};  // [..., page_stride / kScorePages]

  int64_t page_stride() const { return round_up(num_pages, kScorePages); }
  int64_t num_rows() const { return num_tiles * rows_per_tile; }
};

template <typename Value, typename Exponent>
Scores make_scores(int32_t num_pages, int32_t rows_per_tile, const Value& value,
                   const Exponent& exponent) {
  Scores scores = {.num_pages = num_pages, .rows_per_tile = rows_per_tile, .num_tiles = 3};
  const int64_t count = scores.num_rows() * scores.page_stride();
  for (int64_t i = 0; i < count; ++i) scores.values.push_back(value(static_cast<uint64_t>(i)));
  for (int64_t i = 0; i < count / kScorePages; ++i) {
    scores.exponents.push_back(exponent(static_cast<uint64_t>(i)));
  }
  return scores;
}

float no_exponent(uint64_t) {
  return 0;
}

class PageChoice : public GpuCase {
 protected:
  // Chosen pages of each tile.
  template <typename Launch>
  std::vector<std::vector<int32_t>> choose(const Scores& scores, float gamma, int32_t top_k,
                                           const Launch& launch) {
    const DeviceArray<float> values(scores.values);
    const DeviceArray<float> exponents(scores.exponents);
    const auto num_tiles = static_cast<size_t>(scores.num_tiles);
    const DeviceArray<int32_t> pages(std::vector<int32_t>(num_tiles, scores.num_pages));
    const DeviceArray<int32_t> rows(std::vector<int32_t>(num_tiles, 64));
    const DeviceArray<float> gammas(std::vector<float>{gamma});
    const DeviceArray<int32_t> top(std::vector<int32_t>{top_k});
    const int64_t words = scores.page_stride() / 32;
    DeviceArray<uint32_t> chosen(scores.num_tiles * words);
    DeviceArray<int32_t> count(scores.num_tiles);
    launch({.scores = values.data(),
            .exponents = exponents.data(),
            .page_stride = scores.page_stride(),
            .rows_per_tile = scores.rows_per_tile,
            .num_heads = 1,
            .num_tiles = scores.num_tiles,
            .tile_pages = pages.data(),
            .tile_rows = rows.data(),
            .gamma = gammas.data(),
            .top_k = top.data(),
            .chosen = chosen.data(),
            .count = count.data()});
    synchronize();
    EXPECT_TRUE(chosen.guards_intact() && count.guards_intact());
    const auto bits = chosen.values();
    const auto counts = count.values();
    std::vector<std::vector<int32_t>> lists(num_tiles);
    for (size_t t = 0; t < num_tiles; ++t) {
      for (int32_t page = 0; page < scores.num_pages; ++page) {
        const auto word = t * static_cast<size_t>(words) + static_cast<size_t>(page / 32);
        if ((bits[word] >> (page % 32) & 1U) != 0) lists[t].push_back(page);
      }
      EXPECT_EQ(counts[t], std::ssize(lists[t]));
    }
    return lists;
  }

  std::vector<std::vector<int32_t>> by_mass(const Scores& scores, float gamma) {
    return choose(scores, gamma, 0, [this](const PageChoiceArguments& arguments) {
      launch_choose_by_mass(arguments, stream());
    });
  }
  std::vector<std::vector<int32_t>> best(const Scores& scores, int32_t top_k) {
    return choose(scores, 0, top_k, [this](const PageChoiceArguments& arguments) {
      launch_choose_best(arguments, stream());
    });
  }
};

std::vector<int32_t> sorted(std::vector<int32_t> pages) {
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  return pages;
}

// As the CPU chooses, from the same masses.
std::vector<std::vector<int32_t>> expected_by_mass(const Scores& scores, float gamma) {
  std::vector<std::vector<int32_t>> lists;
  const int64_t stride = scores.page_stride();
  for (int64_t tile = 0; tile < scores.num_tiles; ++tile) {
    std::vector<int32_t> list = {0, std::max(scores.num_pages - 2, 0), scores.num_pages - 1};
    for (int64_t row = tile * scores.rows_per_tile; row < (tile + 1) * scores.rows_per_tile;
         ++row) {
      cpu::Ranking ranking;
      double total = 0;
      for (int32_t page = 0; page < scores.num_pages; ++page) {
        const auto at = static_cast<size_t>(row * stride + page);
        const float mass =
            std::ldexp(scores.values[at], static_cast<int>(scores.exponents[at / kScorePages]));
        ranking.add(page, mass);
        total += static_cast<double>(mass);
      }
      ranking.cover(static_cast<double>(gamma) * total, list);
    }
    lists.push_back(sorted(list));
  }
  return lists;
}

std::vector<std::vector<int32_t>> expected_best(const Scores& scores, int32_t top_k) {
  std::vector<std::vector<int32_t>> lists;
  for (int64_t tile = 0; tile < scores.num_tiles; ++tile) {
    cpu::Ranking ranking;
    ranking.add_forced(0);
    for (int32_t page = 1; page < scores.num_pages; ++page) {
      if (page == scores.num_pages - 1) {
        ranking.add_forced(page);
      } else {
        ranking.add(page, scores.values[static_cast<size_t>(tile * scores.page_stride() + page)]);
      }
    }
    std::vector<int32_t> list;
    ranking.best(static_cast<size_t>(std::max(top_k, 2)), list);
    lists.push_back(sorted(list));
  }
  return lists;
}

// One, several and all warps of a block; around their borders.
constexpr int32_t kPageCounts[] = {1,    2,    3,    31,   64,   65,    130,   1000, 2047,
                                   2048, 2049, 8191, 8192, 8193, 16384, 16385, 65536};

TEST_F(PageChoice, CoversAsTheCpuDoesWhereSumsAreExact) {
  for (const int32_t num_pages : kPageCounts) {
    SCOPED_TRACE(num_pages);
    // Integers below 128 add up to less than 2^24: no order of the sum rounds, most are ties.
    const Scores scores = make_scores(
        num_pages, 5,
        [](uint64_t i) {
          const uint64_t bits = test::random_bits(61, i);
          return static_cast<float>(bits % 100 == 0 ? 60 + bits / 128 % 50 : bits / 128 % 4);
        },
        no_exponent);
    for (const float gamma : {0.03125F, 0.5F, 0.9375F}) {
      EXPECT_EQ(by_mass(scores, gamma), expected_by_mass(scores, gamma)) << gamma;
    }
  }
}

TEST_F(PageChoice, CoversWithinAPageOfTheCpuWhereSumsAreRounded) {
  for (const int32_t num_pages : kPageCounts) {
    SCOPED_TRACE(num_pages);
    const Scores scores = make_scores(
        num_pages, 5, [](uint64_t i) { return std::exp2(2 * test::random_normal(62, i) - 16); },
        [](uint64_t i) { return std::floor(30 * test::random_normal(63, i)); });
    for (const float gamma : {0.1F, 0.6F, 0.95F, 0.999F}) {
      const auto actual = by_mass(scores, gamma);
      const auto expected = expected_by_mass(scores, gamma);
      for (size_t tile = 0; tile < actual.size(); ++tile) {
        std::vector<int32_t> only;
        std::set_symmetric_difference(actual[tile].begin(), actual[tile].end(),
                                      expected[tile].begin(), expected[tile].end(),
                                      std::back_inserter(only));
        // One page a row where the sum meets the target within rounding.
        EXPECT_LE(only.size(), 1U) << gamma;
      }
    }
  }
}

TEST_F(PageChoice, EqualMassesAreTakenFromTheFirst) {
  for (const int32_t num_pages : {40, 1000, 3000, 20000}) {
    const Scores scores = make_scores(
        num_pages, 2, [](uint64_t) { return 1.0F; }, no_exponent);
    EXPECT_EQ(by_mass(scores, 0.25F), expected_by_mass(scores, 0.25F)) << num_pages;
  }
}

TEST_F(PageChoice, NotANumberAndInfinityTakeEverything) {
  for (const int32_t num_pages : {70, 5000}) {
    for (const float bad : {std::nanf(""), -std::nanf(""), INFINITY}) {
      Scores scores = make_scores(
          num_pages, 1, [](uint64_t) { return 0.5F; }, no_exponent);
      scores.values[static_cast<size_t>(scores.page_stride() + 33)] = bad;
      const auto lists = by_mass(scores, 0.5F);
      EXPECT_LT(std::ssize(lists[0]), num_pages);
      EXPECT_EQ(std::ssize(lists[1]), num_pages);
      Scores far = make_scores(
          num_pages, 1, [](uint64_t) { return 0.5F; }, no_exponent);
      far.exponents[0] = INFINITY;
      EXPECT_EQ(std::ssize(by_mass(far, 0.5F)[0]), num_pages);
    }
  }
}

TEST_F(PageChoice, TakesTheBestAsTheCpuDoes) {
  for (const int32_t num_pages : kPageCounts) {
    SCOPED_TRACE(num_pages);
    const Scores distinct = make_scores(
        num_pages, 1, [](uint64_t i) { return test::random_normal(64, i); }, no_exponent);
    const Scores ties = make_scores(
        num_pages, 1,
        [](uint64_t i) { return static_cast<float>(test::random_bits(65, i) % 5) - 2; },
        no_exponent);
    for (const int32_t top_k : {1, 2, 3, 33, 100, 1023, 60000}) {
      EXPECT_EQ(best(distinct, top_k), expected_best(distinct, top_k)) << top_k;
      EXPECT_EQ(best(ties, top_k), expected_best(ties, top_k)) << top_k;
    }
  }
}

TEST_F(PageChoice, RanksNotANumberFirstAndZerosAlike) {
  Scores scores = make_scores(
      500, 1, [](uint64_t i) { return i % 2 == 0 ? 0.0F : -0.0F; }, no_exponent);
  for (const size_t at : {77, 200, 340}) scores.values[at] = std::nanf("");
  for (const int32_t top_k : {3, 4, 5, 40, 300}) {
    EXPECT_EQ(best(scores, top_k), expected_best(scores, top_k)) << top_k;
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
