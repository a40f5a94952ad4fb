// SPDX-License-Identifier: Apache-2.0
// Decides when a query head has attended to enough of a cache. Pages are attended in portions, in an
// order that their digests give. After each portion a rule compares the mass attended with what is
// left. The numbers are the same on every device; a GPU has both rules in a kernel of its own
// (kernels/cuda/sm90/pages/page_attention.cu).
//
// A rule does not see which pages are in memory or when they came, so tokens do not depend on it.
// Stateless: any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace millrace::kernels {

struct PageRuleNumbers {
  // Between two questions to the rule, kPortion pages are attended, or 1 / kPortionShare of those
  // attended so far once that is more. On average 6 % too many pages are attended.
  static constexpr int64_t kPortion = 4;
  static constexpr int64_t kPortionShare = 8;
  // With fewer pages, a mean and a deviation say nothing.
  static constexpr int64_t kSamples = 8;
  static constexpr float kDeviations = 3;
  // Factor of the deviation: the attended pages are those whose digests promise most, and they vary
  // less than the others. With 1, one query in two gets less than the mass asked for; with 1.5, one
  // in five, for 10 % more pages.
  static constexpr float kSafety = 1.5F;
  // If a head looks for one token, the page of that token has a k of 2 to 3.6, while the attended
  // pages suggest a mean of 1 and a deviation of 0.2. The rule assumes kSoughtPages such pages in a
  // prompt, equally likely to be any of its pages. At a mass of 0.98, over 6 prompts of
  // SmolLM2-135M, one query in 13 gets less without this assumption, and some less than a tenth of
  // it; with it one in 250, for 15 % more pages (docs/notebook/progressive-decoding.md).
  static constexpr float kSoughtPages = 1.25F;
  static constexpr float kSoughtK = 2.5F;
  // Pages with less spread are no samples: keys that hardly differ do not show how log masses
  // spread.
  static constexpr float kLeastSpread = 1e-3F;
  // Error bound of float32 sums of up to a million terms, pairwise by page: far above
  // 2^-24 * log2(count).
  static constexpr float kSumError = 1e-4F;
  // The mean absolute deviation of a Gaussian is sqrt(2 / pi) of its standard deviation.
  static constexpr float kGaussian = 1.2533141F;
  // The first page and the last two come before all others.
  static constexpr bool leads(int64_t page, int64_t num_pages) {
    return page == 0 || page + 2 >= num_pages;
  }
  static constexpr int64_t portion(int64_t num_attended) {
    return std::max(kPortion, num_attended / kPortionShare);
  }
};

struct PageRuleChoice {
  float log_odds = 0;   // log((1 - mass) / mass)
  bool proven = false;  // by bounds; otherwise calibrated
};

// What the digest of a page says of one query head's scores in it, as the natural log of softmax
// mass before division: log sum over the page's tokens of exp(scale * q.k).
struct PageEstimate {
  // At least the log mass that attending to the page finds, including its rounding. From Quest's box
  // (arXiv 2406.10774, eq. 4) and the mean distance from its centre.
  float bound = 0;
  // Quest's own bound: from the box alone, times the number of tokens.
  float box = 0;
  // Log mass if all keys were the centre of the box. The real log mass is `centre` + k * `spread`,
  // with a k that differs little between the pages of a head.
  float centre = 0;
  float spread = 0;
  // Decides the order in which pages are attended: ArkVale's cuboid-mean (NeurIPS 2024), which PSA
  // uses.
  float rank = 0;
};

// One query head in one layer of one step.
struct RuleView {
  std::span<const PageEstimate> estimates;  // by page
  std::span<const float> log_mass;          // by page; for attended pages only
  std::span<const int32_t> order;           // of pages; the first `num_attended` are attended
  int64_t num_attended = 0;
  int64_t num_leading = 0;  // of the attended; these come first in any order
  float log_attended = 0;   // log mass of these and of the tokens after the prompt
};

class PageRule {
 public:
  virtual ~PageRule() = default;

  // Pages with a higher rank are attended first,
  virtual float rank(const PageEstimate& estimate) const { return estimate.rank; }
  // except for those that come before all others: the first page, whose first token is a sink that
  // its digest does not show, and the last two, where local heads look.
  virtual bool leads(int64_t page, int64_t num_pages) const;
  // How many pages to attend before enough() is asked again: four, and more as the number attended
  // grows, because the cost of asking grows with the number of pages.
  virtual int64_t portion(int64_t num_attended) const;
  // Not called once all pages are attended.
  virtual bool enough(const RuleView& view) const = 0;
};

// The rest is at most the sum of its bounds, so the mass attended is never less than asked for.
class BoundRule final : public PageRule {
 public:
  // mass: above 0, at most 1.
  explicit BoundRule(double mass);
  bool enough(const RuleView& view) const override;

 private:
  const float log_odds_;
};

// The rest is estimated. PSA (arXiv 2503.00392, algorithm 1) takes the least mass of any page so
// far for every page that is left. Here each of these has its own estimate: the log mass of page p
// is centre_p + k_p spread_p, and the k of the pages attended so far show how k is distributed in
// the rest. Their mean and kSafety of their deviation are used, as if log masses were normal (the
// mean of a log-normal), cut off kDeviations above the mean. In addition, a page of the rest may
// hold a token that the head looks for, which no sample foretells (kSoughtPages, kSoughtK). Pages
// that lead are not a sample of the rest. How often and how far the mass falls short:
// docs/notebook/progressive-decoding.md.
class CalibratedRule final : public PageRule {
 public:
  explicit CalibratedRule(double mass);
  bool enough(const RuleView& view) const override;

 private:
  const float log_odds_;
};

}  // namespace millrace::kernels
