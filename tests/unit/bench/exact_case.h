// SPDX-License-Identifier: Apache-2.0
// Exact masses of a row's pages and the adaptive rule over them, computed in double from their
// definitions. The oracle of bench/quality is compared with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "kernels/ref/element.h"
#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::bench {

using kernels::AdaptiveRule;
using kernels::EstimationCase;
using kernels::kPageTokens;

// [causal pages]: the log of the sum of exp(scale q k) over the page's keys up to the row at
// `position`.
inline std::vector<double> log_masses_by_definition(EstimationCase& c, int32_t head,
                                                    int64_t position) {
  const auto& shape = c.shape();
  const kernels::KvSlab kv = c.kv();
  const int64_t kv_head = head / (shape.num_query_heads / shape.num_kv_heads);
  std::vector<double> sums(static_cast<size_t>(position / kPageTokens + 1));
  for (int64_t key = 0; key <= position; ++key) {
    double product = 0;
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      product +=
          kernels::ref::load(c.rows(), kv.dtype,
                             (position * shape.num_query_heads + head) * shape.head_dim + d) *
          kernels::ref::load(kv.k, kv.dtype,
                             (kv_head * kv.token_stride + key) * shape.head_dim + d);
    }
    sums[static_cast<size_t>(key / kPageTokens)] += std::exp(double{c.scale()} * product);
  }
  for (double& sum : sums) sum = std::log(sum);
  return sums;
}

// The pages that a row chooses, and the margin by which it does not choose otherwise: the least of
// the relative differences between the last page taken and the first left out, and between the mass
// reached and the mass wanted, with that page and without.
struct RowPages {
  std::set<int32_t> pages;  // without the kept ones
  double margin = std::numeric_limits<double>::infinity();
};

// Tries every number of pages, from none on.
inline RowPages pages_by_definition(const std::vector<double>& log_masses,
                                    const AdaptiveRule& rule) {
  const auto num_pages = static_cast<int32_t>(log_masses.size());
  double total = 0, kept = 0;
  std::vector<std::pair<double, int32_t>> others;  // descending by mass, earlier pages first
  for (int32_t page = 0; page < num_pages; ++page) {
    const double mass = std::exp(log_masses[static_cast<size_t>(page)]);
    total += mass;
    if (page == 0 || page >= num_pages - 2) {
      kept += mass;
    } else {
      others.emplace_back(-mass, page);
    }
  }
  std::sort(others.begin(), others.end());
  const double wanted = std::max(std::min(rule.gamma * (total - kept), rule.enough * total - kept),
                                 rule.min_recall * total - kept);
  RowPages row;
  double reached = 0;
  for (size_t count = 0;; ++count) {
    row.margin = std::min(row.margin, std::abs(reached - wanted) / total);
    if (reached >= wanted || count == others.size()) {
      if (count > 0 && count < others.size()) {
        const double last = -others[count - 1].first, next = -others[count].first;
        row.margin = std::min(row.margin, (last - next) / last);
      }
      return row;
    }
    row.pages.insert(others[count].second);
    reached -= others[count].first;
  }
}

}  // namespace millrace::bench
