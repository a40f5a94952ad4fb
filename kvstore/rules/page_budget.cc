// SPDX-License-Identifier: Apache-2.0
#include "kvstore/rules/page_budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvstore/rules/placement.h"

namespace millrace::kvstore {

namespace {

constexpr double kLeastShareOfBudget = 0.5;

// Marks among a head's shares: larger and smaller than any share of its mass.
constexpr float kAlways = 2;
constexpr float kTaken = -1;

std::vector<float> shares_of(std::span<const float> scores) {
  const double mass = std::accumulate(scores.begin(), scores.end(), 0.0);
  std::vector<float> shares(scores.size());
  if (mass > 0) {
    std::ranges::transform(scores, shares.begin(),
                           [mass](float score) { return static_cast<float>(score / mass); });
  }
  const auto window = static_cast<size_t>(std::min(kWindowPages, std::ssize(shares)));
  std::ranges::fill(std::span(shares).last(window), kAlways);
  static_assert(kSinkPages == 1);
  shares.front() = kAlways;
  return shares;
}

}  // namespace

std::vector<int64_t> largest(std::span<const float> values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto end = order.begin() + std::min(count, std::ssize(order));
  std::nth_element(order.begin(), end, order.end(), [&](int64_t a, int64_t b) {
    const float of_a = values[static_cast<size_t>(a)], of_b = values[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  order.erase(end, order.end());
  return order;
}

int64_t num_kept_pages(double budget, int64_t num_pages) {
  const int64_t least = std::min(num_pages, kSinkPages + kWindowPages);
  return std::clamp<int64_t>(std::llround(budget * static_cast<double>(num_pages)), least,
                             num_pages);
}

KeptPages choose_kept_pages(double budget, const PageScores& scores) {
  const int64_t num_pages = scores.num_pages;
  const int64_t of_each = num_kept_pages(budget * kLeastShareOfBudget, num_pages);
  const int64_t shared = (num_kept_pages(budget, num_pages) - of_each) * scores.num_kv_heads;
  KeptPages kept(scores.num_layers, scores.num_kv_heads, num_pages);
  for (int32_t layer = 0; layer < scores.num_layers; ++layer) {
    std::vector<float> left;
    for (int32_t head = 0; head < scores.num_kv_heads; ++head) {
      auto shares = shares_of(scores.of(layer, head));
      for (const int64_t page : largest(shares, of_each)) {
        kept.keep(layer, head, page);
        shares[static_cast<size_t>(page)] = kTaken;
      }
      left.insert(left.end(), shares.begin(), shares.end());
    }
    for (const int64_t at : largest(left, shared)) {
      kept.keep(layer, static_cast<int32_t>(at / num_pages), at % num_pages);
    }
  }
  return kept;
}

}  // namespace millrace::kvstore
