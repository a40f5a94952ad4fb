// SPDX-License-Identifier: Apache-2.0
#include "kernels/pages/page_rule.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace millrace::kernels {

namespace {

using Numbers = PageRuleNumbers;

float log_odds_of(double mass) {
  MR_CHECK(mass > 0 && mass <= 1, "a mass of {}", mass);
  return static_cast<float>(std::log((1 - mass) / mass));
}

// Log of a sum of exponentials, relative to the greatest one so far.
class LogSum {
 public:
  void add(float x) {
    if (x <= max_) {
      sum_ += std::exp(x - max_);
    } else {
      sum_ = sum_ * std::exp(max_ - x) + 1;
      max_ = x;
    }
  }
  float log() const { return max_ + std::log(sum_); }

 private:
  float max_ = -1e30F;
  float sum_ = 0;
};

struct Calibration {
  float mean = 0;
  float deviation = 0;
  int64_t samples = 0;
};

Calibration calibrate(const RuleView& view) {
  double sum = 0, squares = 0;
  int64_t samples = 0;
  for (int64_t i = view.num_leading; i < view.num_attended; ++i) {
    const int32_t page = view.order[static_cast<size_t>(i)];
    const PageEstimate& estimate = view.estimates[static_cast<size_t>(page)];
    if (estimate.spread < Numbers::kLeastSpread) continue;
    const double k =
        double{view.log_mass[static_cast<size_t>(page)] - estimate.centre} / estimate.spread;
    sum += k;
    squares += k * k;
    ++samples;
  }
  if (samples == 0) return {};
  const double mean = sum / static_cast<double>(samples);
  const double variance = std::max(0.0, squares / static_cast<double>(samples) - mean * mean);
  return {static_cast<float>(mean), static_cast<float>(std::sqrt(variance)), samples};
}

}  // namespace

bool PageRule::leads(int64_t page, int64_t num_pages) const {
  return Numbers::leads(page, num_pages);
}

int64_t PageRule::portion(int64_t num_attended) const {
  return Numbers::portion(num_attended);
}

BoundRule::BoundRule(double mass) : log_odds_(log_odds_of(mass)) {}

bool BoundRule::enough(const RuleView& view) const {
  LogSum rest;
  for (const int32_t page : view.order.subspan(static_cast<size_t>(view.num_attended))) {
    rest.add(view.estimates[static_cast<size_t>(page)].bound);
  }
  return rest.log() + Numbers::kSumError <= view.log_attended + log_odds_;
}

CalibratedRule::CalibratedRule(double mass) : log_odds_(log_odds_of(mass)) {}

bool CalibratedRule::enough(const RuleView& view) const {
  if (view.num_attended < Numbers::kSamples) return false;
  const Calibration k = calibrate(view);
  const float sought = std::log(Numbers::kSoughtPages / static_cast<float>(view.estimates.size()));
  LogSum rest;
  for (const int32_t page : view.order.subspan(static_cast<size_t>(view.num_attended))) {
    const PageEstimate& estimate = view.estimates[static_cast<size_t>(page)];
    const float deviation = Numbers::kSafety * k.deviation * estimate.spread;
    rest.add(estimate.centre + k.mean * estimate.spread +
             std::min(deviation * deviation / 2, Numbers::kDeviations * deviation));
    rest.add(sought + estimate.centre + Numbers::kSoughtK * estimate.spread);
  }
  return rest.log() <= view.log_attended + log_odds_;
}

}  // namespace millrace::kernels
