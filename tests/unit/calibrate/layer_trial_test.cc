// SPDX-License-Identifier: Apache-2.0
#include "calibrate/layer_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/far_device.h"
#include "tests/unit/calibrate/planted_layer.h"

namespace millrace::calibrate {
namespace {

constexpr int32_t kSink = 70;
constexpr int32_t kWindow = 200;
constexpr plan::HeadPattern kAShape{
    .pattern = plan::Pattern::kAShape, .sink = kSink, .window = kWindow};
constexpr plan::HeadPattern kSlashes{
    .pattern = plan::Pattern::kVerticalSlash, .verticals = 100, .slashes = 100};
constexpr plan::HeadPattern kBlocks{.pattern = plan::Pattern::kBlockSparse, .top_k = 4};
constexpr plan::HeadPattern kPages11{.pattern = plan::Pattern::kAdaptive};
constexpr plan::HeadPattern kWidest[] = {kAShape, kSlashes, kBlocks, kPages11};

constexpr double kNoSink = -std::numeric_limits<double>::infinity();

// Naive attention of one row in double, over the keys that `sees` admits. `sink`: an additional
// logit in the softmax, without a value.
template <typename Sees>
std::vector<double> reference_row(const PlantedLayer& layer, int32_t head, int64_t row, double sink,
                                  Sees&& sees) {
  const float* q = layer.q.data() + (row * kHeads + head) * kHeadDim;
  std::vector<double> scores, out(kHeadDim, 0);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key <= row; ++key) {
    if (!sees(key)) continue;
    const float* k = layer.k.data() + (head * kTokens + key) * kHeadDim;
    double score = 0;
    for (int i = 0; i < kHeadDim; ++i) score += double{q[i]} * double{k[i]};
    scores.push_back(score * kScale);
    keys.push_back(key);
  }
  const double largest = std::max(*std::max_element(scores.begin(), scores.end()), sink);
  double total = std::exp(sink - largest);
  for (double& score : scores) total += score = std::exp(score - largest);
  for (size_t j = 0; j < keys.size(); ++j) {
    const float* v = layer.v.data() + (head * kTokens + keys[j]) * kHeadDim;
    for (int i = 0; i < kHeadDim; ++i) out[static_cast<size_t>(i)] += scores[j] / total * v[i];
  }
  return out;
}

// A-shape attention as the index states it: a row tile computes the keys from its first row's
// window up to its last row, and the sinks.
double reference_error(const PlantedLayer& layer, int32_t head, double sink = kNoSink) {
  double sum = 0;
  const int64_t num_rows = kTokens - kernels::kTileRows;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t first_row = row / kernels::kTileRows * kernels::kTileRows;
    const auto dense = reference_row(layer, head, row, sink, [](int64_t) { return true; });
    const auto out = reference_row(layer, head, row, sink, [&](int64_t key) {
      return key < kSink || key > first_row - kWindow;
    });
    double difference = 0, whole = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      difference += (out[i] - dense[i]) * (out[i] - dense[i]);
      whole += dense[i] * dense[i];
    }
    sum += std::sqrt(difference / whole);
  }
  return sum / static_cast<double>(num_rows);
}

TEST(LayerTrial, HasTheErrorOfAReferenceInDouble) {
  const auto layer = planted_layer();
  const auto device = kernels::make_cpu_device({.num_threads = 2});
  TrialOfLayer trial(*device, layer, kWidest);
  const std::vector<plan::HeadPattern> patterns(kHeads, kAShape);
  ASSERT_TRUE(trial->build(patterns).ok());
  trial->attend();
  const auto errors = trial->errors();
  ASSERT_TRUE(errors.ok()) << errors.error().to_string();
  for (const int32_t head : {kLocal, kColumns, kClustered}) {
    const double expected = reference_error(layer, head);
    // Float32 outputs of sums over up to 2,048 keys are off by some 1e-6 of their size.
    EXPECT_NEAR((*errors)[static_cast<size_t>(head)], expected, 1e-4) << head;
  }
}

// What a pattern leaves out weighs less if a sink has much of the mass.
TEST(LayerTrial, CountsTheSinksOfHeads) {
  const auto layer = planted_layer();
  const auto device = kernels::make_cpu_device({.num_threads = 2});
  const std::vector<float> sinks{3, 9, 6};
  TrialOfLayer with(*device, layer, kWidest, sinks);
  TrialOfLayer without(*device, layer, kWidest);
  for (auto* trial : {&with, &without}) {
    ASSERT_TRUE((*trial)->build(std::vector<plan::HeadPattern>(kHeads, kAShape)).ok());
    (*trial)->attend();
  }
  const auto errors = with->errors();
  const auto errors_without = without->errors();
  ASSERT_TRUE(errors.ok() && errors_without.ok());
  for (const int32_t head : {kColumns, kClustered}) {
    const auto h = static_cast<size_t>(head);
    EXPECT_NEAR((*errors)[h], reference_error(layer, head, double{sinks[h]}), 1e-4) << head;
    EXPECT_GT(std::abs((*errors)[h] - (*errors_without)[h]), 1e-3) << head;
  }
}

TEST(LayerTrial, IsWithoutErrorWhereHeadsAreDense) {
  const auto layer = planted_layer();
  const auto device = kernels::make_cpu_device({.num_threads = 2});
  TrialOfLayer trial(*device, layer, kWidest);
  ASSERT_TRUE(trial->build(std::vector<plan::HeadPattern>(kHeads)).ok());
  trial->attend();
  EXPECT_EQ(*trial->errors(), std::vector<double>(kHeads, 0));
  const auto dense = dense_work(trial->tiles());
  EXPECT_EQ(*trial->count(), std::vector<HeadWork>(kHeads, dense));
}

TEST(LayerTrial, IsTheSameOnADeviceWithMemoryOfItsOwn) {
  const auto layer = planted_layer();
  const auto near = kernels::make_cpu_device({.num_threads = 2});
  test::FarDevice far(kernels::make_cpu_device({.num_threads = 2}));
  TrialOfLayer here(*near, layer, kWidest);
  TrialOfLayer there(far, layer, kWidest);
  // With blocks and without: the device's index differs in its arrays.
  for (const auto& patterns : {std::vector<plan::HeadPattern>{kAShape, kSlashes, kSlashes},
                               std::vector<plan::HeadPattern>{kPages11, kSlashes, kBlocks}}) {
    for (auto* trial : {&here, &there}) {
      ASSERT_TRUE((*trial)->build(patterns).ok());
      (*trial)->attend();
    }
    EXPECT_EQ(*here->count(), *there->count());
    EXPECT_EQ(*here->errors(), *there->errors());
  }
}

}  // namespace
}  // namespace millrace::calibrate
