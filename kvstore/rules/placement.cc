// SPDX-License-Identifier: Apache-2.0
#include "kvstore/rules/placement.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "common/check.h"

namespace millrace::kvstore {

namespace {

// Greater for a page of a higher score, and between equals for the earlier one. Floats that are not
// negative have the order of their bits.
uint64_t order_key(float score, size_t place) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 has become 0
  return uint64_t{bits} << 32 | (UINT32_MAX - static_cast<uint32_t>(place));
}

size_t place_of(uint64_t order_key) {
  return UINT32_MAX - static_cast<uint32_t>(order_key);
}

}  // namespace

Keep keep_without_score(int32_t layer, int64_t page, int64_t num_prompt_pages) {
  if (page < kSinkPages) return Keep::kSink;
  if (page >= num_prompt_pages - kWindowPages) return Keep::kWindow;
  if (layer < kFirstLayers) return Keep::kFirstLayer;
  return Keep::kRest;
}

bool displaces(const PagePriority& page, const PagePriority& other) {
  if (page.rank() == Keep::kRest) return false;
  if (page.rank() != other.rank()) return other.rank() < page.rank();
  return page.weight() > 0 && page.weight() >= 2 * other.weight();
}

std::vector<PagePriority> rank_pages(int32_t layer, int64_t num_prompt_pages,
                                     std::span<const int64_t> pages,
                                     std::span<const float> scores) {
  MR_CHECK(scores.size() == pages.size(), "{} scores of {} pages", scores.size(), pages.size());
  const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
  std::vector<PagePriority> ranks(pages.size());
  double covered = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    ranks[i].keep = keep_without_score(layer, pages[i], num_prompt_pages);
    ranks[i].share = total > 0 ? static_cast<float>(scores[i] / total) : 0.0f;
    if (ranks[i].keep != Keep::kRest) covered += ranks[i].share;
  }
  // A heap rather than a sort: the first few pages often carry most of the mass.
  std::vector<uint64_t> best(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) best[i] = order_key(scores[i], i);
  std::ranges::make_heap(best);
  double carried = 0;
  for (; !best.empty() && (carried < kHeadMass || covered < kHeadMass); best.pop_back()) {
    std::ranges::pop_heap(best);
    PagePriority& page = ranks[place_of(best.back())];
    if (page.share == 0) break;
    if (carried < kHeadMass) {
      page.carries_mass = true;
      carried += page.share;
    }
    if (covered < kHeadMass && page.keep == Keep::kRest) {
      page.keep = Keep::kMass;
      covered += page.share;
    }
  }
  return ranks;
}

}  // namespace millrace::kvstore
