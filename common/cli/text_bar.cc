// SPDX-License-Identifier: Apache-2.0
#include "common/cli/text_bar.h"

#include <algorithm>

namespace millrace {

std::string text_bar(int64_t done, int64_t total) {
  constexpr int64_t kWidth = 40;
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  const auto filled = static_cast<size_t>(share * kWidth);
  std::string bar = "[";
  bar.append(filled, '#').append(kWidth - filled, '-').append("]");
  return bar;
}

}  // namespace millrace
