#include "kvclient/order/hot_list.h"

#include <algorithm>
#include <numeric>

namespace millrace::kvclient {

std::vector<bool> hot_list(std::span<const float> scores, double share) {
  std::vector<size_t> by_score(scores.size());
  std::iota(by_score.begin(), by_score.end(), size_t{0});
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  const double wanted = share * std::accumulate(scores.begin(), scores.end(), 0.0);
  std::vector<bool> hot(scores.size());
  double carried = 0;
  for (const size_t page : by_score) {
    if (carried >= wanted || scores[page] <= 0) break;
    hot[page] = true;
    carried += scores[page];
  }
  return hot;
}

}  // namespace millrace::kvclient
