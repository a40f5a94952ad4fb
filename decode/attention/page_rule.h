// When a query head has attended to enough of a cache. Pages are attended in an order that their
// digests give, in portions; after each a rule compares the mass attended with what is left.
//
// A rule sees nothing of which pages are in memory or when they came, so tokens do not depend on it.
// Stateless: any number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "decode/attention/page_kernel.h"

namespace millrace::decode {

// One query head in one layer of one step.
struct RuleView {
  std::span<const PageEstimate> estimates;  // by page
  std::span<const float> log_mass;          // by page; of those attended
  std::span<const int32_t> order;           // of pages; the first `num_attended` are attended
  int64_t num_attended = 0;
  int64_t num_leading = 0;  // of them, first in any order
  float log_attended = 0;   // log mass of these and of the tokens behind the prompt
};

class PageRule {
 public:
  virtual ~PageRule() = default;

  // Pages with more of it are attended first,
  virtual float rank(const PageEstimate& estimate) const { return estimate.rank; }
  // but for those that come before all others: the first page, whose first token is a sink that its
  // digest does not show, and the last two, where local heads look.
  virtual bool leads(int64_t page, int64_t num_pages) const;
  // How many pages to attend before enough() is asked again: four, and more as they become many,
  // for a question costs as much as the number of pages.
  virtual int64_t portion(int64_t num_attended) const;
  // Not asked once all pages are attended.
  virtual bool enough(const RuleView& view) const = 0;
};

// The rest is at most the sum of its bounds: the mass attended is never less than asked for.
class BoundRule final : public PageRule {
 public:
  // mass: above 0, at most 1.
  explicit BoundRule(double mass);
  bool enough(const RuleView& view) const override;

 private:
  const float log_odds_;
};

// The rest is estimated. PSA (arXiv 2503.00392, algorithm 1) takes the least mass of a page so far
// for every page that is left; here each of those has its own: the log mass of page p is centre_p +
// k_p spread_p, and the k of the pages attended so far say how k is distributed in the rest: with
// their mean and kSafety of their deviation, as if log masses were normal (the mean of a log-normal),
// cut off kDeviations above the mean; and a page of the rest may hold a token that the head looks for,
// which no sample foretells (kSoughtPages, kSoughtK). Pages that lead are no sample of the rest.
// What is missing, how often and how far: docs/notebook/progressive-decoding.md.
class CalibratedRule final : public PageRule {
 public:
  explicit CalibratedRule(double mass);
  bool enough(const RuleView& view) const override;

 private:
  const float log_odds_;
};

}  // namespace millrace::decode
