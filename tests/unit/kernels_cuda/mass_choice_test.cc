// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/adaptive/mass_choice.h"

#include <cmath>
#include <numeric>

#include "tests/support/random_data.h"
#include "tests/unit/kernels_cuda/choice_case.h"

namespace millrace::kernels::cuda {
namespace {

// Logarithms of masses, in steps, for tiles that all see num_pages pages.
struct Masses {
  int32_t num_pages = 0;
  int32_t rows_per_tile = 1;
  std::vector<int32_t> steps;  // [tiles, rows_per_tile, num_pages]

  std::span<const int32_t> row(int64_t number) const {
    return std::span(steps).subspan(static_cast<size_t>(number * num_pages),
                                    static_cast<size_t>(num_pages));
  }
};

// With these rules the sums of CoversAsASortDoesWhereSumsAreExact are exact.
const std::vector<AdaptiveRule> kExactRules = {{.gamma = 0.03125F},
                                               {.gamma = 0.5F},
                                               {.gamma = 0.9375F},
                                               {.gamma = 0},
                                               {.gamma = 0.5F, .enough = 0.25F},
                                               {.gamma = 0.75F, .enough = 0.5F},
                                               {.gamma = 1, .enough = 0.75F},
                                               {.gamma = 0.25F, .min_recall = 0.5F},
                                               {.gamma = 0, .min_recall = 0.9375F}};

double mass_of(int32_t steps) {
  return std::exp2(steps / double{kMassStepsPerOctave});
}

bool is_kept(int32_t page, int32_t num_pages) {
  return page == 0 || page >= far_end(num_pages);
}

// As launch_kept_mass, launch_page_filter and launch_page_scan write them: kept pages are summed, all others scanned.
struct CodedMasses {
  std::vector<MassSteps> masses;
  std::vector<uint64_t> scanned;
  std::vector<KeptMass> kept;

  void add_row(std::span<const int32_t> steps) {
    const auto num_pages = static_cast<int32_t>(steps.size());
    const auto stride = static_cast<size_t>(round_up(num_pages, kGroupPages));
    const size_t first = masses.size();
    masses.resize(first + stride, kNotANumber);  // what is not scanned must not be read
    scanned.resize(masses.size() / kGroupPages);
    KeptMass& own = kept.emplace_back();
    own.steps = static_cast<float>(std::max(
        {steps.front(), steps.back(), steps[static_cast<size_t>(std::max(num_pages - 2, 0))]}));
    for (int32_t page = 0; page < num_pages; ++page) {
      const int32_t mass = steps[static_cast<size_t>(page)];
      if (is_kept(page, num_pages)) {
        own.sum += static_cast<float>(mass_of(mass - static_cast<int32_t>(own.steps)));
        continue;
      }
      const size_t at = first + static_cast<size_t>(page);
      masses[at] = static_cast<MassSteps>(mass);
      scanned[at / kGroupPages] |= uint64_t{1} << at % kGroupPages;
    }
  }
};

class MassChoice : public ChoiceCase {
 protected:
  template <typename Steps>
  static Masses make_masses(int32_t num_pages, int32_t rows_per_tile, const Steps& steps) {
    Masses masses = {.num_pages = num_pages, .rows_per_tile = rows_per_tile, .steps = {}};
    const int64_t count = kNumTiles * rows_per_tile * num_pages;
    for (int64_t i = 0; i < count; ++i) masses.steps.push_back(steps(static_cast<uint64_t>(i)));
    return masses;
  }

  static CodedMasses coded(const Masses& masses) {
    CodedMasses result;
    for (int64_t r = 0; r < kNumTiles * masses.rows_per_tile; ++r) result.add_row(masses.row(r));
    return result;
  }

  PageLists by_mass(const Masses& masses, const CodedMasses& code, const AdaptiveRule& rule,
                    int64_t tile_rows = kTileRows) {
    const DeviceArray<MassSteps> values(code.masses);
    const DeviceArray<uint64_t> scanned(code.scanned);
    const DeviceArray<KeptMass> kept(code.kept);
    const DeviceArray<AdaptiveRule> rules(std::vector<AdaptiveRule>{rule});
    const DeviceArray<RowTile> tiles(std::vector<RowTile>(kNumTiles, {.num_rows = tile_rows}));
    return choose(masses.num_pages, masses.rows_per_tile, [&](const ChoiceTiles& choice) {
      launch_choose_by_mass({.tiles = choice,
                             .row_tiles = tiles.data(),
                             .sample = RowSample(masses.rows_per_tile),
                             .kept = kept.data(),
                             .scanned = scanned.data(),
                             .masses = values.data(),
                             .rules = rules.data()},
                            stream());
    });
  }
  PageLists by_mass(const Masses& masses, const AdaptiveRule& rule) {
    return by_mass(masses, coded(masses), rule);
  }

  // Chosen by a sort of all pages, in double precision.
  static PageLists expected_by_mass(const Masses& masses, const AdaptiveRule& rule) {
    PageLists lists;
    for (int64_t tile = 0; tile < kNumTiles; ++tile) {
      std::vector<int32_t> list;
      for (int32_t page = 0; page < masses.num_pages; ++page) {
        if (is_kept(page, masses.num_pages)) list.push_back(page);
      }
      for (int64_t r = 0; r < masses.rows_per_tile; ++r) {
        cover(masses.row(tile * masses.rows_per_tile + r), rule, list);
      }
      lists.push_back(sorted(list));
    }
    return lists;
  }

 private:
  static void cover(std::span<const int32_t> steps, const AdaptiveRule& rule,
                    std::vector<int32_t>& list) {
    const int32_t largest = *std::max_element(steps.begin(), steps.end());
    const auto num_pages = static_cast<int32_t>(steps.size());
    const auto of = [&](int32_t page) { return steps[static_cast<size_t>(page)]; };
    std::vector<int32_t> order;
    double far = 0, kept = 0;
    for (int32_t page = 0; page < num_pages; ++page) {
      const bool stays = is_kept(page, num_pages);
      (stays ? kept : far) += mass_of(of(page) - largest);
      if (!stays) order.push_back(page);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return of(a) > of(b); });
    const double target = std::max(std::min(rule.gamma * far, rule.enough * (far + kept) - kept),
                                   rule.min_recall * (far + kept) - kept);
    double sum = 0;
    for (const int32_t page : order) {
      if (sum >= target) return;
      list.push_back(page);
      sum += mass_of(of(page) - largest);
    }
  }
};

TEST_F(MassChoice, CoversAsASortDoesWhereSumsAreExact) {
  for (const int32_t num_pages : kPageCounts) {
    SCOPED_TRACE(num_pages);
    // Powers of two from 1/8 to 1 add up without rounding; most masses are ties.
    const Masses masses = make_masses(num_pages, 4, [](uint64_t i) {
      const uint64_t bits = test::random_bits(61, i);
      return bits % 100 == 0 ? 0 : -kMassStepsPerOctave * static_cast<int32_t>(bits / 128 % 4);
    });
    for (const AdaptiveRule& rule : kExactRules) {
      EXPECT_EQ(by_mass(masses, rule), expected_by_mass(masses, rule))
          << rule.gamma << ", " << rule.enough << ", " << rule.min_recall;
    }
  }
}

TEST_F(MassChoice, CoversWithinAPageOfASortWhereSumsAreRounded) {
  for (const int32_t num_pages : kPageCounts) {
    SCOPED_TRACE(num_pages);
    // Groups differ by far more than what still counts next to the largest page.
    const Masses masses = make_masses(num_pages, 4, [](uint64_t i) {
      const float group = 200 * test::random_normal(63, i / kGroupPages);
      return static_cast<int32_t>(group + 16 * test::random_normal(62, i));
    });
    for (const AdaptiveRule& rule : std::vector<AdaptiveRule>{{.gamma = 0.1F},
                                                              {.gamma = 0.6F},
                                                              {.gamma = 0.95F},
                                                              {.gamma = 0.999F},
                                                              {.gamma = 0.9F, .enough = 0.95F},
                                                              {.min_recall = 0.8F}}) {
      const auto actual = by_mass(masses, rule);
      const auto expected = expected_by_mass(masses, rule);
      for (size_t tile = 0; tile < actual.size(); ++tile) {
        std::vector<int32_t> only;
        std::set_symmetric_difference(actual[tile].begin(), actual[tile].end(),
                                      expected[tile].begin(), expected[tile].end(),
                                      std::back_inserter(only));
        // At most one page a row, where the sum meets the target within rounding.
        EXPECT_LE(only.size(), 1U) << rule.gamma << ", " << rule.enough;
      }
    }
  }
}

TEST_F(MassChoice, EqualMassesAreTakenFromTheFirst) {
  for (const int32_t num_pages : {40, 1000, 3000, 20000}) {
    const Masses masses = make_masses(num_pages, 2, [](uint64_t) { return -77; });
    EXPECT_EQ(by_mass(masses, {.gamma = 0.25F}), expected_by_mass(masses, {.gamma = 0.25F}))
        << num_pages;
  }
}

TEST_F(MassChoice, MoreRowsThanWarpsAreAllCovered) {
  const Masses masses = make_masses(
      700, 64, [](uint64_t i) { return static_cast<int32_t>(test::random_bits(66, i) % 400); });
  EXPECT_EQ(by_mass(masses, {.gamma = 0.05F}), expected_by_mass(masses, {.gamma = 0.05F}));
}

TEST_F(MassChoice, RowsWhoseKeptPagesHoldEnoughTakeNothing) {
  // Page 0 outweighs all others together.
  const Masses masses = make_masses(
      3000, 2, [](uint64_t i) { return i % 3000 == 0 ? 0 : -20 * kMassStepsPerOctave; });
  const auto kept = std::vector<int32_t>{0, 2998, 2999};
  const AdaptiveRule satisfied = {.gamma = 0.9F, .enough = 0.99F, .min_recall = 0.95F};
  EXPECT_EQ(by_mass(masses, satisfied), PageLists(kNumTiles, kept));
  EXPECT_EQ(std::ssize(by_mass(masses, {.gamma = 0.5F})[0]), 3 + 1499);
}

TEST_F(MassChoice, RowsThatAShortTileLacksAreNotRead) {
  const Masses masses = make_masses(
      200, 16, [](uint64_t i) { return static_cast<int32_t>(test::random_bits(67, i) % 100); });
  CodedMasses code = coded(masses);
  for (size_t row = 0; row < code.kept.size(); ++row) {
    if (row % 16 >= 10) code.kept[row].sum = NAN;
  }
  for (const auto& list : by_mass(masses, code, {.gamma = 0.1F}, 10)) {
    EXPECT_LT(std::ssize(list), 200);
  }
  EXPECT_EQ(std::ssize(by_mass(masses, code, {.gamma = 0.1F}, 11)[0]), 200);
}

TEST_F(MassChoice, WhatIsNoNumberTakesEverything) {
  for (const int32_t num_pages : {70, 5000}) {
    const Masses masses = make_masses(num_pages, 1, [](uint64_t) { return 5; });
    const auto expect_all_of_the_second_tile = [&](const CodedMasses& code) {
      const auto lists = by_mass(masses, code, {.gamma = 0.5F});
      EXPECT_LT(std::ssize(lists[0]), num_pages);
      EXPECT_EQ(std::ssize(lists[1]), num_pages);
    };
    CodedMasses far = coded(masses);
    far.masses[far.masses.size() / kNumTiles + 7] = kNotANumber;
    expect_all_of_the_second_tile(far);
    CodedMasses kept = coded(masses);
    kept.kept[1].sum = NAN;
    expect_all_of_the_second_tile(kept);
  }
}

TEST_F(MassChoice, PagesThatWereNotScannedAreNotTaken) {
  const Masses masses = make_masses(
      700, 4, [](uint64_t i) { return static_cast<int32_t>(test::random_bits(68, i) % 100); });
  CodedMasses code = coded(masses);
  for (uint64_t& pages : code.scanned) pages &= 0x5555555555555555U;  // even pages
  for (const auto& list : by_mass(masses, code, {.gamma = 0.5F})) {
    EXPECT_GT(std::ssize(list), 100);
    for (const int32_t page : list) EXPECT_TRUE(page % 2 == 0 || is_kept(page, 700)) << page;
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
