// SPDX-License-Identifier: Apache-2.0
// Constants of progressive attention, the same on every device: the size of the portions in which
// pages are attended, and the numbers of the two rules that end it (decode/attention/page_rule.h).
#pragma once

#include <algorithm>
#include <cstdint>

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

}  // namespace millrace::kernels
