#include "kernels/cuda/estimation/mass_choice.h"

#include <cmath>
#include <numeric>

#include "tests/support/random_data.h"
#include "tests/unit/kernels_cuda/choice_case.h"

namespace millrace::kernels::cuda {
namespace {

// Logarithms of masses, in steps, of tiles that all see num_pages pages.
struct Masses {
  int32_t num_pages = 0;
  int32_t rows_per_tile = 1;
  std::vector<int32_t> steps;  // [tiles, rows_per_tile, num_pages]

  std::span<const int32_t> row(int64_t number) const {
    return std::span(steps).subspan(static_cast<size_t>(number * num_pages),
                                    static_cast<size_t>(num_pages));
  }
};

double mass_of(int32_t steps) {
  return std::exp2(steps / double{kMassStepsPerOctave});
}

// As launch_page_masses writes them.
struct CodedMasses {
  std::vector<uint8_t> masses;
  std::vector<MassGroup> groups;

  void add_group(std::span<const int32_t> steps) {
    MassGroup group = {.exponent = *std::max_element(steps.begin(), steps.end())};
    for (const int32_t s : steps) {
      masses.push_back(static_cast<uint8_t>(std::max(s - group.exponent + kLargestMass, 0)));
      group.sum += static_cast<float>(mass_of(s - group.exponent));
    }
    masses.resize(static_cast<size_t>(round_up(std::ssize(masses), kScorePages)));
    groups.push_back(group);
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
    for (int64_t r = 0; r < kNumTiles * masses.rows_per_tile; ++r) {
      for (auto row = masses.row(r); !row.empty();) {
        const size_t count = std::min<size_t>(row.size(), kScorePages);
        result.add_group(row.first(count));
        row = row.subspan(count);
      }
    }
    return result;
  }

  PageLists by_mass(const Masses& masses, const CodedMasses& code, float gamma) {
    const DeviceArray<uint8_t> values(code.masses);
    const DeviceArray<MassGroup> groups(code.groups);
    const DeviceArray<float> gammas(std::vector<float>{gamma});
    return choose(masses.num_pages, masses.rows_per_tile, [&](const ChoiceTiles& tiles) {
      launch_choose_by_mass({.tiles = tiles,
                             .masses = values.data(),
                             .groups = groups.data(),
                             .gamma = gammas.data()},
                            stream());
    });
  }
  PageLists by_mass(const Masses& masses, float gamma) {
    return by_mass(masses, coded(masses), gamma);
  }

  // By a sort of all pages, in double precision.
  static PageLists expected_by_mass(const Masses& masses, float gamma) {
    PageLists lists;
    for (int64_t tile = 0; tile < kNumTiles; ++tile) {
      std::vector<int32_t> list = {0, std::max(masses.num_pages - 2, 0), masses.num_pages - 1};
      for (int64_t r = 0; r < masses.rows_per_tile; ++r) {
        cover(masses.row(tile * masses.rows_per_tile + r), double{gamma}, list);
      }
      lists.push_back(sorted(list));
    }
    return lists;
  }

 private:
  static void cover(std::span<const int32_t> steps, double gamma, std::vector<int32_t>& list) {
    std::vector<int32_t> order(steps.size());
    std::iota(order.begin(), order.end(), 0);
    const auto of = [&](int32_t page) { return steps[static_cast<size_t>(page)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return of(a) > of(b); });
    const int32_t largest = of(order.front());
    double total = 0;
    for (const int32_t page : order) total += mass_of(of(page) - largest);
    double sum = 0;
    for (const int32_t page : order) {
      if (sum >= gamma * total) return;
      list.push_back(page);
      sum += mass_of(of(page) - largest);
    }
  }
};

TEST_F(MassChoice, CoversAsASortDoesWhereSumsAreExact) {
  for (const int32_t num_pages : kPageCounts) {
    SCOPED_TRACE(num_pages);
    // Powers of two from 1/8 to 1 add up without rounding; most are ties.
    const Masses masses = make_masses(num_pages, 5, [](uint64_t i) {
      const uint64_t bits = test::random_bits(61, i);
      return bits % 100 == 0 ? 0 : -kMassStepsPerOctave * static_cast<int32_t>(bits / 128 % 4);
    });
    for (const float gamma : {0.03125F, 0.5F, 0.9375F}) {
      EXPECT_EQ(by_mass(masses, gamma), expected_by_mass(masses, gamma)) << gamma;
    }
  }
}

TEST_F(MassChoice, CoversWithinAPageOfASortWhereSumsAreRounded) {
  for (const int32_t num_pages : kPageCounts) {
    SCOPED_TRACE(num_pages);
    // Groups differ by far more than what a page counts beside the largest.
    const Masses masses = make_masses(num_pages, 5, [](uint64_t i) {
      const float group = 200 * test::random_normal(63, i / kScorePages);
      return static_cast<int32_t>(group + 16 * test::random_normal(62, i));
    });
    for (const float gamma : {0.1F, 0.6F, 0.95F, 0.999F}) {
      const auto actual = by_mass(masses, gamma);
      const auto expected = expected_by_mass(masses, gamma);
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

TEST_F(MassChoice, EqualMassesAreTakenFromTheFirst) {
  for (const int32_t num_pages : {40, 1000, 3000, 20000}) {
    const Masses masses = make_masses(num_pages, 2, [](uint64_t) { return -77; });
    EXPECT_EQ(by_mass(masses, 0.25F), expected_by_mass(masses, 0.25F)) << num_pages;
  }
}

TEST_F(MassChoice, MoreRowsThanWarpsAreAllCovered) {
  const Masses masses = make_masses(
      700, 65, [](uint64_t i) { return static_cast<int32_t>(test::random_bits(66, i) % 400); });
  EXPECT_EQ(by_mass(masses, 0.05F), expected_by_mass(masses, 0.05F));
}

TEST_F(MassChoice, WhatIsNoNumberTakesEverything) {
  for (const int32_t num_pages : {70, 5000}) {
    const Masses masses = make_masses(num_pages, 1, [](uint64_t) { return 5; });
    CodedMasses code = coded(masses);
    code.groups[code.groups.size() / kNumTiles].exponent = kNoNumber;  // of the second tile
    const auto lists = by_mass(masses, code, 0.5F);
    EXPECT_LT(std::ssize(lists[0]), num_pages);
    EXPECT_EQ(std::ssize(lists[1]), num_pages);
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
