// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/index/tiling.h"
#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {

void page_digests(const PageDigestParams& params) {
  const int64_t dim = params.head_dim;
  for (int64_t begin = 0; begin < params.num_tokens; begin += kPageTokens) {
    const int64_t end = std::min(begin + kPageTokens, params.num_tokens);
    const int64_t page = begin / kPageTokens;
    for (int64_t i = 0; i < dim; ++i) {
      const auto key = [&](int64_t t) { return load(params.k, params.dtype, t * dim + i); };
      double lowest = key(begin);
      double highest = key(begin);
      for (int64_t t = begin; t < end; ++t) {
        lowest = std::min(lowest, key(t));
        highest = std::max(highest, key(t));
      }
      const double centre = (lowest + highest) / 2;
      double sum = 0;
      for (int64_t t = begin; t < end; ++t) sum += std::abs(key(t) - centre);
      params.min[page * dim + i] = static_cast<float>(lowest);
      params.max[page * dim + i] = static_cast<float>(highest);
      params.radius[page * dim + i] = static_cast<float>(sum / static_cast<double>(end - begin));
    }
  }
}

}  // namespace millrace::kernels::ref
