// SPDX-License-Identifier: Apache-2.0
// Progressive attention compared with dense attention in double precision.

#include "decode/attention/progressive_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "decode/attention/cpu_page_kernel.h"
#include "tests/unit/decode/paged_cache.h"

namespace millrace::decode {
namespace {

using test::PagedCache;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

CacheShape shape(DType dtype = DType::kFloat32, int64_t tokens = 64 * 40 - 17) {
  return {.num_layers = 2,
          .first_kv_head = 2,
          .num_kv_heads = 2,
          .num_query_heads = 6,
          .head_dim = 32,
          .num_tokens = tokens,
          .dtype = dtype};
}

struct Attended {
  std::vector<float> out, lse;
  std::vector<std::vector<int32_t>> pages;  // by kv head
};

class Attention {
 public:
  Attention(PagedCache& cache, const kernels::PageRule& rule, int64_t num_slots = 1000)
      : shape_(cache.shape()),
        pool_(cache, {.num_layers = shape_.num_layers,
                      .first_kv_head = shape_.first_kv_head,
                      .num_kv_heads = shape_.num_kv_heads,
                      .num_pages = shape_.num_pages(),
                      .page_bytes = cache.page_bytes(),
                      .num_slots = num_slots}),
        attention_(shape_, cache.digests(), pool_, kernel_, rule) {}

  Result<Attended> attend(int32_t layer, const std::vector<float>& q,
                          const std::vector<float>& tail = {}, int64_t first_token = 0) {
    Attended attended{.out = std::vector<float>(q.size()),
                      .lse = std::vector<float>(static_cast<size_t>(shape_.num_query_heads))};
    MR_RETURN_IF_ERROR(attention_.attend({.layer = layer,
                                          .first_token = first_token,
                                          .q = q.data(),
                                          .tail_lse = tail.empty() ? nullptr : tail.data(),
                                          .out = attended.out.data(),
                                          .lse = attended.lse.data()},
                                         ample()));
    for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
      const auto pages = attention_.pages_read(h);
      attended.pages.emplace_back(pages.begin(), pages.end());
    }
    return attended;
  }
  Attended must_attend(int32_t layer, const std::vector<float>& q,
                       const std::vector<float>& tail = {}, int64_t first_token = 0) {
    auto attended = attend(layer, q, tail, first_token);
    MR_CHECK(attended.ok(), "{}", attended.error().to_string());
    return std::move(*attended);
  }
  PagePool& pool() { return pool_; }
  const ProgressiveStats& stats() const { return attention_.stats(); }

 private:
  const CacheShape shape_;
  PagePool pool_;
  CpuPageKernel kernel_{2};
  ProgressiveAttention attention_;
};

std::vector<float> queries(uint64_t seed, float size = 1) {
  return test::random_normals(seed, 6 * 32, size);
}

// The share of a query head's mass, including the tail's, that was attended to.
double share(const PagedCache& cache, int32_t layer, int32_t head, const std::vector<float>& q,
             const std::vector<int32_t>& pages, double tail = -INFINITY) {
  const auto dense = cache.dense(layer, head, q.data() + head * cache.shape().head_dim);
  double mass = std::exp(tail - dense.lse);
  const double total = 1 + mass;
  for (const int32_t page : pages) {
    mass += std::exp(dense.log_mass[static_cast<size_t>(page)] - dense.lse);
  }
  return mass / total;
}

double least_share(const PagedCache& cache, int32_t layer, const std::vector<float>& q,
                   const Attended& attended) {
  double least = 1;
  for (int32_t head = 0; head < 6; ++head) {
    least = std::min(least,
                     share(cache, layer, head, q, attended.pages[static_cast<size_t>(head / 3)]));
  }
  return least;
}

class DTypeTest : public testing::TestWithParam<DType> {};

TEST_P(DTypeTest, AllPagesAreDenseAttention) {
  PagedCache cache(shape(GetParam()), test::normal_keys, 7);
  const kernels::CalibratedRule all(1.0);
  Attention attention(cache, all);
  const auto q = queries(3);
  for (int32_t layer = 0; layer < 2; ++layer) {
    const auto attended = attention.must_attend(layer, q);
    for (int32_t head = 0; head < 6; ++head) {
      const auto dense = cache.dense(layer, head, q.data() + head * 32);
      // Float32 sums of 2,543 weights and 32 products: some 1e-6 each.
      EXPECT_NEAR(attended.lse[static_cast<size_t>(head)], dense.lse, 1e-5);
      for (size_t d = 0; d < 32; ++d) {
        EXPECT_NEAR(attended.out[static_cast<size_t>(head) * 32 + d], dense.out[d], 1e-5);
      }
    }
  }
}

// It attends to exactly the tokens from a given one on, even if the rule would be content with
// fewer; and to nothing if the window has left the prompt behind.
TEST_P(DTypeTest, AWindowIsDenseAttentionFromItsFirstToken) {
  const auto whole = shape(GetParam());
  PagedCache cache(whole, test::normal_keys, 7);
  const kernels::CalibratedRule little(0.05);
  const auto q = queries(3);
  for (const int64_t num_slots : {1000, 6}) {
    Attention attention(cache, little, num_slots);
    (void)attention.must_attend(0, q);  // what a layer without a window left behind
    for (const int64_t first : {1, 63, 64, 1000, 2500, 2542}) {
      SCOPED_TRACE(first);
      const auto attended = attention.must_attend(0, q, {}, first);
      for (int32_t head = 0; head < 6; ++head) {
        const auto dense = cache.dense(0, head, q.data() + head * 32, first);
        EXPECT_NEAR(attended.lse[static_cast<size_t>(head)], dense.lse, 1e-5);  // as above
        for (size_t d = 0; d < 32; ++d) {
          EXPECT_NEAR(attended.out[static_cast<size_t>(head) * 32 + d], dense.out[d], 1e-5);
        }
      }
      EXPECT_EQ(std::ssize(attended.pages[0]), whole.num_pages() - first / 64);
    }
    for (const int64_t behind : {whole.num_tokens, whole.num_tokens + 1000}) {
      const auto nothing = attention.must_attend(0, q, {}, behind);
      EXPECT_EQ(nothing.lse, std::vector<float>(6, -INFINITY));
      EXPECT_EQ(nothing.out, std::vector<float>(6 * 32, 0.0F));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DTypeTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

// Sharp and flat attention, similar and different pages, and keys far from zero, where float32
// rounds most.
TEST(PageKernel, NoPageHasMoreMassThanItsBound) {
  const std::vector<test::MakeKeys> kinds = {
      test::normal_keys, test::clustered_keys(1, 0.1F), test::clustered_keys(100, 0.01F),
      test::clustered_keys(30, 3), test::clustered_keys(0, 0)};
  CpuPageKernel kernel(1);
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    PagedCache cache(shape(), kinds[kind], 11 + kind);
    for (const float size : {0.1F, 1.0F, 20.0F}) {
      const auto q = queries(kind, size);
      const kernels::CalibratedRule all(1.0);
      Attention attention(cache, all);
      std::vector<PageRanking> rankings;
      rank_pages(kernel, all, cache.shape(), cache.digests(), 0, q.data(), nullptr, rankings);
      for (int32_t head = 0; head < 6; ++head) {
        const auto dense = cache.dense(0, head, q.data() + head * 32);
        const auto num_pages = static_cast<size_t>(cache.shape().num_pages());
        const kernels::PageEstimate* const estimates =
            rankings[static_cast<size_t>(head / 3)].estimates.data() +
            static_cast<size_t>(head % 3) * num_pages;
        for (size_t page = 0; page < num_pages; ++page) {
          // The kernel's float32 result is within its rounding of this, and the bound includes that
          // rounding.
          ASSERT_LE(dense.log_mass[page], double{estimates[page].bound})
              << "kind " << kind << ", queries " << size << ", head " << head << ", page " << page;
          ASSERT_LE(estimates[page].bound, estimates[page].box + 1e-3F + 1e-4F * size * 100);
        }
      }
    }
  }
}

TEST(PageKernel, TheMassThatItFindsIsWithinTheBoundToo) {
  PagedCache cache(shape(), test::clustered_keys(100, 0.01F), 5);
  CpuPageKernel kernel(1);
  const auto q = queries(9, 5);
  const kernels::BoundRule rule(0.5);
  std::vector<PageRanking> rankings;
  rank_pages(kernel, rule, cache.shape(), cache.digests(), 1, q.data(), nullptr, rankings);
  std::vector<std::byte> page(static_cast<size_t>(cache.page_bytes()));
  for (int64_t number = 0; number < cache.shape().num_pages(); ++number) {
    ASSERT_TRUE(cache
                    .fetch(std::vector<kvclient::NamedPage>{{{1, 2, number}, page.data()}},
                           FetchUrgency::kNeed, ample())
                    .ok());
    const PageRows rows{page.data(), std::min<int64_t>(64, cache.shape().num_tokens - 64 * number)};
    std::vector<float> max(3, -INFINITY), sum(3), out(3 * 32), mass(3);
    const AttendItem item{.q = q.data(),
                          .num_heads = 3,
                          .head_dim = 32,
                          .scale = cache.shape().scale(),
                          .pages = {&rows, 1},
                          .state = {max.data(), sum.data(), out.data()},
                          .log_mass = mass.data()};
    kernel.attend({&item, 1});
    for (size_t head = 0; head < 3; ++head) {
      const auto& estimates = rankings[0].estimates;
      EXPECT_LE(mass[head], estimates[head * static_cast<size_t>(cache.shape().num_pages()) +
                                      static_cast<size_t>(number)]
                                .bound);
    }
  }
}

TEST(BoundRule, NeverAttendsToLessThanTheMassAskedFor) {
  int64_t left_out = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    PagedCache cache(shape(), test::clustered_keys(1.5F, 0.05F), 100 + seed);
    for (const double mass : {0.5, 0.9, 0.98}) {
      const kernels::BoundRule rule(mass);
      Attention attention(cache, rule);
      const auto q = queries(seed, 3);
      const auto attended = attention.must_attend(0, q);
      EXPECT_GE(least_share(cache, 0, q, attended), mass) << "seed " << seed;
      for (const auto& pages : attended.pages) left_out += 40 - std::ssize(pages);
    }
  }
  // Otherwise the test would prove nothing.
  EXPECT_GT(left_out, 6 * 3 * 2 * 5);
}

// Pages with different centres and keys that are normal around them, as the rule assumes.
TEST(CalibratedRule, ComesCloseToTheMassAskedForOnFewerPages) {
  double sum = 0, least = 1;
  int64_t pages_read = 0, queries_asked = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    PagedCache cache(shape(), test::clustered_keys(1, 1), 200 + seed);
    const kernels::CalibratedRule rule(0.98);
    Attention attention(cache, rule);
    const auto q = queries(seed, 3);
    const auto attended = attention.must_attend(1, q);
    const double got = least_share(cache, 1, q, attended);
    least = std::min(least, got);
    sum += got;
    for (const auto& pages : attended.pages) pages_read += std::ssize(pages);
    ++queries_asked;
  }
  EXPECT_GE(sum / static_cast<double>(queries_asked), 0.98);
  EXPECT_GE(least, 0.95);
  EXPECT_LE(pages_read, 8 * 2 * 40 * 90 / 100);
}

// Twelve pages of a mass of e each were attended, all with a k of 1; 28 of 40 are left, of a spread of
// 4. If those have a k of 1 as well they hold 28 e^(4 - depth), and if 1.25 of the 40 have one of 2.5,
// 1.25 / 40 * 28 e^(10 - depth) besides: a fiftieth of the whole from a depth of 10.35 on, the former
// alone from 7.74 on.
TEST(CalibratedRule, HoldsAPageOfTheRestForWhatTheHeadLooksFor) {
  const kernels::CalibratedRule rule(0.98);
  std::vector<int32_t> order(40);
  std::iota(order.begin(), order.end(), 0);
  const auto enough = [&](float depth) {
    std::vector<kernels::PageEstimate> estimates(40, {.centre = 0, .spread = 1});
    std::fill(estimates.begin() + 12, estimates.end(),
              kernels::PageEstimate{.centre = -depth, .spread = 4});
    const std::vector<float> log_mass(40, 1);
    return rule.enough({.estimates = estimates,
                        .log_mass = log_mass,
                        .order = order,
                        .num_attended = 12,
                        .num_leading = 3,
                        .log_attended = std::log(12.0F) + 1});
  };
  EXPECT_FALSE(enough(7));
  EXPECT_FALSE(enough(10.3F));
  EXPECT_TRUE(enough(10.4F));
}

TEST(ProgressiveAttention, WhatStandsBehindThePromptCountsAsAttended) {
  PagedCache cache(shape(), test::normal_keys, 7);
  const kernels::BoundRule rule(0.9);
  Attention attention(cache, rule);
  const auto q = queries(3);
  std::vector<float> tail(6, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(attention.must_attend(0, q, tail).pages[0].size(), 40u);
  std::fill(tail.begin(), tail.end(), 100.0F);  // far above any score here
  EXPECT_EQ(attention.must_attend(0, q, tail).pages[0].size(), 4u);
}

TEST(ProgressiveAttention, TheFirstPageAndTheLastTwoLead) {
  PagedCache cache(shape(), test::clustered_keys(3, 0.1F), 8);
  const kernels::BoundRule rule(0.01);
  Attention attention(cache, rule);
  for (const auto& pages : attention.must_attend(0, queries(4, 5)).pages) {
    ASSERT_GE(pages.size(), 4u);
    EXPECT_EQ(std::vector(pages.begin(), pages.begin() + 3), (std::vector<int32_t>{0, 38, 39}));
  }
}

TEST(ProgressiveAttention, APoolOfAnySizeGivesTheSame) {
  PagedCache cache(shape(DType::kBFloat16), test::clustered_keys(1, 1), 21);
  const kernels::CalibratedRule rule(0.95);
  Attention ample_pool(cache, rule, 160);
  for (const int64_t slots : {2, 3, 7, 24, 80}) {
    Attention small_pool(cache, rule, slots);
    for (uint64_t step = 0; step < 4; ++step) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        const auto q = queries(step, 2);
        const auto expected = ample_pool.must_attend(layer, q);
        const auto attended = small_pool.must_attend(layer, q);
        EXPECT_EQ(attended.out, expected.out) << slots << " slots";
        EXPECT_EQ(attended.lse, expected.lse);
        EXPECT_EQ(attended.pages, expected.pages);
      }
    }
  }
}

TEST(ProgressiveAttention, APageThatDoesNotComeIsAnErrorAndThenComes) {
  PagedCache cache(shape(), test::normal_keys, 3);
  const kernels::CalibratedRule all(1.0);
  Attention attention(cache, all, 30);
  const auto q = queries(1);
  const auto expected = Attention(cache, all).must_attend(0, q);
  int64_t fetches = 0;
  cache.on_fetch = [&](auto) -> Result<void> {
    if (++fetches == 3) return Error(Errc::kCorrupt, "page 5 is wrong");
    return {};
  };
  const auto failed = attention.attend(0, q);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Errc::kCorrupt);
  EXPECT_EQ(attention.must_attend(0, q).out, expected.out);
}

TEST(ProgressiveAttention, WhatItReadLastTimeComesInOneBatch) {
  PagedCache cache(shape(), test::normal_keys, 3);
  const kernels::CalibratedRule all(1.0);
  Attention attention(cache, all, 160);
  attention.must_attend(0, queries(1));
  EXPECT_EQ(cache.num_fetched, 80);
  EXPECT_EQ(attention.stats().pages_touched[0], 80);
  Attention again(cache, all, 160);
  again.must_attend(0, queries(1));
  EXPECT_GT(cache.num_fetches, 2);
}

TEST(PageDigests, RefusesBoundsThatAreNone) {
  PageDigests digests(1, 1, 1, 16);
  std::vector<float> values(48, 1);
  EXPECT_TRUE(digests.set(0, 0, values).ok());
  for (const auto& [at, wrong] : {std::pair<size_t, float>{3, 2.0F},  // min above max
                                  {20, std::numeric_limits<float>::quiet_NaN()},
                                  {35, -1.0F}}) {
    auto spoilt = values;
    spoilt[at] = wrong;
    const auto set = digests.set(0, 0, spoilt);
    ASSERT_FALSE(set.ok());
    EXPECT_EQ(set.error().code, Errc::kCorrupt);
  }
}

}  // namespace
}  // namespace millrace::decode
