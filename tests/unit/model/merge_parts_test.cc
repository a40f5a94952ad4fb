// SPDX-License-Identifier: Apache-2.0
#include "model/merge_parts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/random_data.h"

namespace millrace::model {
namespace {

constexpr int32_t kHeads = 3, kHeadDim = 4, kParts = 3;
constexpr int64_t kPartSize = kHeads * (kHeadDim + 1);

// Three parts, of which the second saw no keys.
std::vector<float> random_parts() {
  auto parts = test::random_normals(1, kParts * kPartSize);
  for (int32_t head = 0; head < kHeads; ++head) {
    parts[kPartSize + kHeads * kHeadDim + head] = -std::numeric_limits<float>::infinity();
  }
  return parts;
}

// Each part's share of the softmax in double, with a sink's logit among its own.
double expected(const std::vector<float>& parts, int32_t head, int32_t dim, double sink_mass) {
  double sum = sink_mass, weighted = 0;
  for (int64_t p = 0; p < kParts; ++p) {
    const double mass = std::exp(double{parts[p * kPartSize + kHeads * kHeadDim + head]});
    sum += mass;
    weighted += mass * parts[p * kPartSize + head * kHeadDim + dim];
  }
  return weighted / sum;
}

TEST(MergeParts, IsTheSoftmaxOverAllParts) {
  const auto parts = random_parts();
  std::vector<float> out(kHeads * kHeadDim);
  merge_parts(parts, kParts, kHeads, kHeadDim, {}, out.data());
  for (int32_t i = 0; i < kHeads * kHeadDim; ++i) {
    EXPECT_NEAR(out[i], expected(parts, i / kHeadDim, i % kHeadDim, 0), 1e-6);
  }
}

TEST(MergeParts, ASinkTakesItsShareAndHasNoValue) {
  const auto parts = random_parts();
  const std::vector<float> sinks = {0.5F, -2, 50};
  std::vector<float> out(kHeads * kHeadDim);
  merge_parts(parts, kParts, kHeads, kHeadDim, sinks, out.data());
  for (int32_t i = 0; i < kHeads * kHeadDim; ++i) {
    const int32_t head = i / kHeadDim;
    EXPECT_NEAR(out[i], expected(parts, head, i % kHeadDim, std::exp(double{sinks[head]})), 1e-6);
  }
}

}  // namespace
}  // namespace millrace::model
