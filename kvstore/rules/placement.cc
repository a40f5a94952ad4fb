#include "kvstore/rules/placement.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"

namespace millrace::kvstore {

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
  std::vector<size_t> by_score(pages.size());
  std::iota(by_score.begin(), by_score.end(), size_t{0});
  // Ties go to the earlier page, so that the ranking does not depend on the sort.
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  double carried = 0;
  for (const size_t i : by_score) {
    if (carried >= kHeadMass || ranks[i].share == 0) break;
    ranks[i].carries_mass = true;
    carried += ranks[i].share;
  }
  for (const size_t i : by_score) {
    if (covered >= kHeadMass || ranks[i].share == 0) break;
    if (ranks[i].keep != Keep::kRest) continue;
    ranks[i].keep = Keep::kMass;
    covered += ranks[i].share;
  }
  return ranks;
}

}  // namespace millrace::kvstore
