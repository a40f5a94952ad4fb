// SPDX-License-Identifier: Apache-2.0
// The order of ranks in Communicator::split, the same for every implementation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::comm {

struct SplitChoice {
  int32_t color;
  int32_t key;
};

// The ranks that chose `color`, ordered by key; ranks of equal key keep their old order.
inline std::vector<int> split_order(std::span<const SplitChoice> choices, int color) {
  std::vector<int> chosen;
  for (size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].color == color) chosen.push_back(static_cast<int>(rank));
  }
  std::stable_sort(chosen.begin(), chosen.end(), [&](int a, int b) {
    return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key;
  });
  return chosen;
}

}  // namespace millrace::comm
