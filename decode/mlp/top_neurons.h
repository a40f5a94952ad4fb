// SPDX-License-Identifier: Apache-2.0
// The neurons with the highest scores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::decode {

// Keeps its working memory from call to call. One thread at a time.
class TopNeurons {
 public:
  // The `count` highest of `scores`, ascending by number; among equal scores the first. Any bits
  // have an order, including NaN. 0 <= count <= scores.size().
  void choose(std::span<const float> scores, int64_t count, std::vector<int32_t>& chosen);

 private:
  int32_t least_key(int64_t count) const;

  std::vector<int32_t> keys_;
};

}  // namespace millrace::decode
