#include "decode/attention/page_rule.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace millrace::decode {

namespace {

constexpr int64_t kPortion = 4;
// A portion is this part of what was attended, once that is many: 6 % too much on average.
constexpr int64_t kPortionShare = 8;
// Of which a mean and a deviation say something.
constexpr int64_t kSamples = 8;
constexpr float kDeviations = 3;
// Pages attended are those whose digests promise most, which differ less than the others. With 1 the
// mass of one query in two stays below what is asked for, with 1.5 of one in five; pages 10 % more.
constexpr float kSafety = 1.5F;
// Where a head looks for one token, its page's k is 2 to 3.6, whatever the pages attended say: a mean
// of 1 and a deviation of 0.2. So many pages of a prompt are held to be such, any page as likely as the
// others. Without them, at a mass of 0.98 of 6 prompts of SmolLM2-135M, one query in 13 stays below it,
// and some below a tenth of it; with them one in 250, for 15 % more pages
// (docs/notebook/progressive-decoding.md).
constexpr float kSoughtPages = 1.25F;
constexpr float kSoughtK = 2.5F;
// Keys that hardly differ say nothing of k.
constexpr float kLeastSpread = 1e-3F;
// Of float32 sums of up to a million terms, pairwise by page: far above 2^-24 * log2(count).
constexpr float kSumError = 1e-4F;

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
    if (estimate.spread < kLeastSpread) continue;
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

int64_t PageRule::portion(int64_t num_attended) const {
  return std::max(kPortion, num_attended / kPortionShare);
}

BoundRule::BoundRule(double mass) : log_odds_(log_odds_of(mass)) {}

bool BoundRule::enough(const RuleView& view) const {
  LogSum rest;
  for (const int32_t page : view.order.subspan(static_cast<size_t>(view.num_attended))) {
    rest.add(view.estimates[static_cast<size_t>(page)].bound);
  }
  return rest.log() + kSumError <= view.log_attended + log_odds_;
}

CalibratedRule::CalibratedRule(double mass) : log_odds_(log_odds_of(mass)) {}

bool CalibratedRule::enough(const RuleView& view) const {
  if (view.num_attended < kSamples) return false;
  const Calibration k = calibrate(view);
  const float sought = std::log(kSoughtPages / static_cast<float>(view.estimates.size()));
  LogSum rest;
  for (const int32_t page : view.order.subspan(static_cast<size_t>(view.num_attended))) {
    const PageEstimate& estimate = view.estimates[static_cast<size_t>(page)];
    const float deviation = kSafety * k.deviation * estimate.spread;
    rest.add(estimate.centre + k.mean * estimate.spread +
             std::min(deviation * deviation / 2, kDeviations * deviation));
    rest.add(sought + estimate.centre + kSoughtK * estimate.spread);
  }
  return rest.log() <= view.log_attended + log_odds_;
}

}  // namespace millrace::decode
