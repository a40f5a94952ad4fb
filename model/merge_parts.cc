// SPDX-License-Identifier: Apache-2.0
#include "model/merge_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::model {

void merge_parts(std::span<const float> parts, int64_t num_parts, int32_t num_heads,
                 int32_t head_dim, std::span<const float> sinks, float* out) {
  const int64_t part_size = int64_t{num_heads} * (head_dim + 1);
  const auto lse = [&](int64_t part, int32_t head) {
    return parts[static_cast<size_t>(part * part_size + int64_t{num_heads} * head_dim + head)];
  };
  for (int32_t head = 0; head < num_heads; ++head) {
    const float sink =
        sinks.empty() ? -std::numeric_limits<float>::infinity() : sinks[static_cast<size_t>(head)];
    float max = sink;
    for (int64_t p = 0; p < num_parts; ++p) max = std::max(max, lse(p, head));
    float sum = sinks.empty() ? 0 : std::exp(sink - max);
    for (int64_t p = 0; p < num_parts; ++p) sum += std::exp(lse(p, head) - max);
    float* row = out + int64_t{head} * head_dim;
    std::fill_n(row, head_dim, 0.0f);
    for (int64_t p = 0; p < num_parts; ++p) {
      const float weight = std::exp(lse(p, head) - max) / sum;
      if (weight == 0) continue;
      const float* part = parts.data() + p * part_size + int64_t{head} * head_dim;
      for (int32_t d = 0; d < head_dim; ++d) row[d] += weight * part[d];
    }
  }
}

}  // namespace millrace::model
