// SPDX-License-Identifier: Apache-2.0
// How many cached pages are worth loading, compared with all possible ends of the prefix, evaluated
// one by one.

#include "worker/store/prefix_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace millrace::worker {
namespace {

constexpr int64_t kPages = 32;
// Computing the 64 rows of a page takes this long, whatever lies before it.
constexpr double kComputeS = 0.1;
constexpr RowCost kFlat{.row_s = kComputeS / 64};

PrefixTimes times_of(RowCost rows, bool beside = false) {
  return {.num_tokens = kPages * 64, .rows = rows, .loads_beside = beside};
}

std::vector<SlowPage> pages_of(double read_s, double load_s, int num_owners = 1) {
  std::vector<SlowPage> pages;
  for (int page = 0; page < kPages; ++page) {
    pages.push_back({.owner = page % num_owners, .read_s = read_s, .load_s = load_s});
  }
  return pages;
}

TEST(NumWorthLoading, PagesInMemoryAlways) {
  EXPECT_EQ(num_worth_loading(pages_of(0, 0), times_of({})), kPages);
  EXPECT_EQ(num_worth_loading({}, times_of(kFlat)), 0);
}

TEST(NumWorthLoading, AllWhereReadingIsFasterAndNoneWhereComputingIs) {
  EXPECT_EQ(num_worth_loading(pages_of(0.9 * kComputeS, 0), times_of(kFlat)), kPages);
  EXPECT_EQ(num_worth_loading(pages_of(1.1 * kComputeS, 0), times_of(kFlat)), 0);
}

TEST(NumWorthLoading, WhatIsReadTwiceCountsTwice) {
  EXPECT_EQ(num_worth_loading(pages_of(0.6 * kComputeS, 0.6 * kComputeS), times_of(kFlat)), 0);
}

TEST(NumWorthLoading, RanksReadAtOnce) {
  EXPECT_EQ(num_worth_loading(pages_of(1.8 * kComputeS, 0), times_of(kFlat)), 0);
  auto times = times_of(kFlat);
  times.num_owners = 2;
  EXPECT_EQ(num_worth_loading(pages_of(1.8 * kComputeS, 0, 2), times), kPages);
}

TEST(NumWorthLoading, EndsBeforeSlowPagesBehindThoseInMemory) {
  auto pages = pages_of(0, 0);
  for (size_t i = 20; i < pages.size(); ++i) pages[i].read_s = 2 * kComputeS;
  EXPECT_EQ(num_worth_loading(pages, times_of(kFlat)), 20);
}

TEST(NumWorthLoading, SlowPagesAreReadForThoseInMemoryBehindThem) {
  auto pages = pages_of(0, 0);
  for (size_t i = 10; i < 15; ++i) pages[i].read_s = 2 * kComputeS;
  EXPECT_EQ(num_worth_loading(pages, times_of(kFlat)), kPages);
}

// Loading p pages while computing 32 - p: both end at the same time if 3 p = 32 - p.
TEST(NumWorthLoading, LoadingBesideComputingIsSharedOutBetweenThem) {
  EXPECT_EQ(num_worth_loading(pages_of(0, 3 * kComputeS), times_of(kFlat, /*beside=*/true)), 8);
  EXPECT_EQ(num_worth_loading(pages_of(0, 3 * kComputeS), times_of(kFlat)), 0);
}

// Rows behind the prefix are computed in any case, and hide the loading.
TEST(NumWorthLoading, RowsBehindThePrefixHideLoading) {
  auto times = times_of(kFlat, /*beside=*/true);
  times.num_tokens = 5 * kPages * 64;
  EXPECT_EQ(num_worth_loading(pages_of(0, 3 * kComputeS), times), kPages);
}

TEST(NumWorthLoading, AGainThatIsHardlyOneDoesNotCount) {
  const auto pages = pages_of(kComputeS + 0.9 * kLeastGainS / kPages, 0);
  EXPECT_EQ(num_worth_loading(pages, times_of(kFlat)), kPages);
}

// Rows take longer the more keys there are. The first pages of a long prefix are cheap to compute,
// and still all of it is worth loading.
TEST(NumWorthLoading, KeysBeforeARowCount) {
  const RowCost dense{.row_s = 0, .key_s = kComputeS / 64 / (kPages * 64)};
  EXPECT_EQ(num_worth_loading(pages_of(0.4 * kComputeS, 0), times_of(dense)), kPages);
  EXPECT_EQ(num_worth_loading(pages_of(0.6 * kComputeS, 0), times_of(dense)), 0);
}

// Row by row, each with half of itself before it.
double prompt_s(const std::vector<SlowPage>& pages, const PrefixTimes& times, size_t end) {
  std::vector<double> reading(static_cast<size_t>(times.num_owners));
  auto loading = reading;
  for (size_t i = 0; i < end; ++i) {
    reading[static_cast<size_t>(pages[i].owner)] += pages[i].read_s;
    loading[static_cast<size_t>(pages[i].owner)] += pages[i].load_s;
  }
  double computing = 0;
  for (auto row = static_cast<int64_t>(end) * 64; row < times.num_tokens; ++row) {
    computing += times.rows.row_s + times.rows.key_s * (static_cast<double>(row) + 0.5);
  }
  const double read_s = *std::ranges::max_element(reading);
  const double load_s = *std::ranges::max_element(loading);
  return read_s + (times.loads_beside ? std::max(load_s, computing) : load_s + computing);
}

TEST(NumWorthLoading, IsNoSlowerThanAnyOtherEnd) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0, 1);
  for (int round = 0; round < 300; ++round) {
    auto times = times_of({.row_s = share(random) / 64, .key_s = share(random) * 1e-5},
                          /*beside=*/round % 2 == 0);
    times.num_owners = 1 + round % 3;
    times.least_gain_s = 0;
    auto pages = pages_of(0, 0);
    for (auto& page : pages) {
      page.owner = static_cast<int>(random() % static_cast<unsigned>(times.num_owners));
      if (random() % 3 == 0) page.load_s = 2 * share(random);
      if (random() % 2 == 0) page.read_s = 2 * share(random);
    }
    const auto chosen = static_cast<size_t>(num_worth_loading(pages, times));
    double best_s = prompt_s(pages, times, 0);
    for (size_t end = 1; end <= pages.size(); ++end) {
      best_s = std::min(best_s, prompt_s(pages, times, end));
    }
    EXPECT_LE(prompt_s(pages, times, chosen), best_s * (1 + 1e-9)) << "round " << round;
  }
}

constexpr Duration kMost = std::chrono::minutes(10);

TEST(PatienceForKept, IsWhatComputingTakesFromTheFirstKeptPageOn) {
  auto pages = pages_of(0, 0);
  EXPECT_EQ(patience_for_kept(pages, kFlat, kMost), Duration::zero());
  pages[22].kept = true;
  EXPECT_NEAR(seconds(patience_for_kept(pages, kFlat, kMost)), 10 * kComputeS, 1e-6);
}

TEST(PatienceForKept, OutlastsAPauseOfTheDisk) {
  auto pages = pages_of(0, 0);
  pages[0].kept = true;
  EXPECT_EQ(patience_for_kept(pages, RowCost{}, kMost), kLeastPatience);
  EXPECT_EQ(patience_for_kept(pages, std::nullopt, kMost), kUnmeasuredPatience);
}

TEST(PatienceForKept, EndsBeforeTheOtherRanksDo) {
  constexpr Duration kShort = std::chrono::milliseconds(1);
  auto pages = pages_of(0, 0);
  pages[0].kept = true;
  EXPECT_EQ(patience_for_kept(pages, RowCost{.row_s = 1e300}, kMost), kMost);
  EXPECT_EQ(patience_for_kept(pages, RowCost{}, kShort), kShort);
  EXPECT_EQ(patience_for_kept(pages, std::nullopt, kShort), kShort);
}

}  // namespace
}  // namespace millrace::worker
