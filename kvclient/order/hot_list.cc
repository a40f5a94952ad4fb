// SPDX-License-Identifier: Apache-2.0
#include "kvclient/order/hot_list.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>

namespace millrace::kvclient {

// A long prompt has hundreds of thousands of scores, so they are sorted as integers: the bits of a
// non-negative float have its order. The page number is in the bits below them.
std::vector<bool> hot_list(std::span<const float> scores, double share) {
  constexpr uint32_t kLast = std::numeric_limits<uint32_t>::max();
  std::vector<uint64_t> best_first(scores.size());
  for (size_t page = 0; page < scores.size(); ++page) {
    const uint64_t bits = std::bit_cast<uint32_t>(scores[page] > 0 ? scores[page] : 0.0f);
    best_first[page] = bits << 32 | (kLast - static_cast<uint32_t>(page));
  }
  std::sort(best_first.begin(), best_first.end(), std::greater<>());
  const double wanted = share * std::accumulate(scores.begin(), scores.end(), 0.0);
  std::vector<bool> hot(scores.size());
  double carried = 0;
  for (const uint64_t key : best_first) {
    const size_t page = kLast - static_cast<uint32_t>(key);
    if (carried >= wanted || scores[page] <= 0) break;
    hot[page] = true;
    carried += scores[page];
  }
  return hot;
}

}  // namespace millrace::kvclient
