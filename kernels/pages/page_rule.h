// What progressive attention goes by on any device: the portions that pages are attended in, and the
// numbers of the two rules that end it (decode/attention/page_rule.h says what the rules are).
#pragma once

#include <algorithm>
#include <cstdint>

namespace millrace::kernels {

struct PageRuleNumbers {
  // Pages between two questions, and the part of the pages attended that a portion is, once that is
  // many: 6 % too much on average.
  static constexpr int64_t kPortion = 4;
  static constexpr int64_t kPortionShare = 8;
  // Pages of which a mean and a deviation say something.
  static constexpr int64_t kSamples = 8;
  static constexpr float kDeviations = 3;
  // Pages attended are those whose digests promise most, which differ less than the others. With 1
  // the mass of one query in two stays below what is asked for, with 1.5 of one in five; pages 10 %
  // more.
  static constexpr float kSafety = 1.5F;
  // Where a head looks for one token, its page's k is 2 to 3.6, whatever the pages attended say: a
  // mean of 1 and a deviation of 0.2. So many pages of a prompt are held to be such, any page as likely
  // as the others. Without them, at a mass of 0.98 of 6 prompts of SmolLM2-135M, one query in 13 stays
  // below it, and some below a tenth of it; with them one in 250, for 15 % more pages
  // (docs/notebook/progressive-decoding.md).
  static constexpr float kSoughtPages = 1.25F;
  static constexpr float kSoughtK = 2.5F;
  // Keys that hardly differ say nothing of how log masses spread.
  static constexpr float kLeastSpread = 1e-3F;
  // Of float32 sums of up to a million terms, pairwise by page: far above 2^-24 * log2(count).
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
  bool proven = false;  // by bounds, else calibrated
};

}  // namespace millrace::kernels
