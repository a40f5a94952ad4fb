// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/estimation/needle_layer.h"

#include <algorithm>
#include <array>

namespace millrace::kernels {
namespace {

struct Needle {
  int64_t tile;
  int32_t page;
};
constexpr std::array<Needle, kMaxNeedles> kNeedles = {
    {{12, 3}, {14, 9}, {17, 6}, {20, 7}, {23, 15}, {25, 4}, {28, 21}, {30, 11}}};

}  // namespace

EstimationCase needle_layer(DType dtype, int num_needles) {
  EstimationCase c({.num_tokens = kNeedleTokens, .head_dim = 64, .dtype = dtype}, 31);
  const std::vector<float> means = test::random_normals(32, 2 * 32 * 64, 0.5F);
  for (int64_t t = 0; t < kNeedleTokens; ++t) {
    for (int32_t d = 0; d < 64; ++d) {
      const auto page_mean = static_cast<size_t>(t / 64 * 64 + d);
      c.q(t, 0, d) = 0.25F * c.q(t, 0, d) + means[page_mean];
      c.k(0, t, d) = 0.25F * c.k(0, t, d) + means[page_mean + 32 * 64];
    }
    c.q(t, 0, 0) = 6;
  }
  c.k(0, 0, 0) = 16;  // a score of 12: nearly all the mass of 2048 keys with scores around 0
  for (int i = 0; i < num_needles; ++i) {
    const Needle& needle = kNeedles[static_cast<size_t>(i)];
    c.q(needle.tile * 64 + 33, 0, 8 + i) = 14;
    c.k(0, needle.page * 64 + 12, 8 + i) = 14;  // a score of 24
  }
  return c;
}

int num_needles_found(const HeadLists& lists, int num_needles) {
  return static_cast<int>(
      std::count_if(kNeedles.begin(), kNeedles.begin() + num_needles, [&](const Needle& needle) {
        const auto& list = lists.blocks[static_cast<size_t>(needle.tile)];
        return std::find(list.begin(), list.end(), needle.page) != list.end();
      }));
}

}  // namespace millrace::kernels
