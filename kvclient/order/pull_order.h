// SPDX-License-Identifier: Apache-2.0
// The order in which the pages of a pull come.
#pragma once

#include <cstdint>

namespace millrace::kvclient {

enum class PullOrder : uint8_t {
  kPosition = 0,     // layer by layer, each by kv head and position
  kCriticality = 1,  // the hot list of each layer, then all other pages
};

// The threshold of progressive sparse attention (arXiv 2503.00392, epsilon), as in the store's
// placement.
inline constexpr double kDefaultHotShare = 0.95;

}  // namespace millrace::kvclient
