#include "kvstore/rules/page_budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvstore/rules/placement.h"

namespace millrace::kvstore {

namespace {

bool always_stays(int64_t page, int64_t num_pages) {
  return page < kSinkPages || page >= num_pages - kWindowPages;
}

}  // namespace

int64_t num_kept_pages(double budget, int64_t num_pages) {
  const int64_t least = std::min(num_pages, kSinkPages + kWindowPages);
  return std::clamp<int64_t>(std::llround(budget * static_cast<double>(num_pages)), least,
                             num_pages);
}

std::vector<bool> choose_kept_pages(double budget, std::span<const float> scores) {
  const auto num_pages = std::ssize(scores);
  std::vector<int64_t> by_worth(scores.size());
  std::iota(by_worth.begin(), by_worth.end(), int64_t{0});
  std::ranges::sort(by_worth, [&](int64_t a, int64_t b) {
    const bool a_stays = always_stays(a, num_pages), b_stays = always_stays(b, num_pages);
    if (a_stays != b_stays) return a_stays;
    const float of_a = scores[static_cast<size_t>(a)], of_b = scores[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  std::vector<bool> kept(scores.size());
  const auto count = static_cast<size_t>(num_kept_pages(budget, num_pages));
  for (const int64_t page : std::span(by_worth).first(count)) {
    kept[static_cast<size_t>(page)] = true;
  }
  return kept;
}

}  // namespace millrace::kvstore
