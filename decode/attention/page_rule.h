// SPDX-License-Identifier: Apache-2.0
// Decides when a query head has attended to enough of a cache. Pages are attended in portions, in
// an order that their digests give. After each portion a rule compares the mass attended with what
// is left.
//
// A rule does not see which pages are in memory or when they came, so tokens do not depend on it.
// Stateless: any number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "decode/attention/page_kernel.h"

namespace millrace::decode {

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

}  // namespace millrace::decode
