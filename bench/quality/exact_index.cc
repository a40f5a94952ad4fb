// SPDX-License-Identifier: Apache-2.0
#include "bench/quality/exact_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "bench/quality/exact_masses.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/estimation/block_lists.h"

namespace millrace::bench {

using kernels::AdaptiveParams;
using kernels::AdaptiveRule;
using kernels::RowTile;

namespace {

using Pages = std::vector<int32_t>;

Pages first_pages(int64_t count) {
  Pages pages(static_cast<size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

// The first page, the diagonal page and the one before it.
bool is_kept(size_t page, size_t num_pages) {
  return page == 0 || page + 2 >= num_pages;
}

// Chooses the pages that one row needs.
class RowChoice {
 public:
  explicit RowChoice(const AdaptiveRule& rule) : rule_(rule) {}

  // Adds the chosen pages to `pages`, without the kept ones.
  void choose(std::span<const double> log_masses, Pages& pages);

 private:
  struct Candidate {
    double share;
    int32_t page;
  };
  // Whether `b` is taken before `a`.
  static bool later(const Candidate& a, const Candidate& b) {
    return a.share != b.share ? a.share < b.share : a.page > b.page;
  }
  double target(double kept, double far) const;

  AdaptiveRule rule_;
  std::vector<Candidate> candidates_;
};

// How much mass to choose. Masses are shares: their total is 1 but for rounding.
double RowChoice::target(double kept, double far) const {
  const double by_rule = std::min(double{rule_.gamma} * far, double{rule_.enough} - kept);
  return std::max(by_rule, double{rule_.min_recall} - kept);
}

void RowChoice::choose(std::span<const double> log_masses, Pages& pages) {
  const double largest = *std::max_element(log_masses.begin(), log_masses.end());
  double total = 0;
  for (const double log_mass : log_masses) total += std::exp(log_mass - largest);
  if (!std::isfinite(total)) {
    const Pages all = first_pages(std::ssize(log_masses));
    pages.insert(pages.end(), all.begin(), all.end());
    return;
  }
  candidates_.clear();
  double kept = 0;
  double far = 0;
  for (size_t page = 0; page < log_masses.size(); ++page) {
    const double share = std::exp(log_masses[page] - largest) / total;
    if (is_kept(page, log_masses.size())) {
      kept += share;
    } else {
      far += share;
      candidates_.push_back({share, static_cast<int32_t>(page)});
    }
  }
  const double wanted = target(kept, far);
  std::make_heap(candidates_.begin(), candidates_.end(), later);
  for (double reached = 0; reached < wanted && !candidates_.empty(); candidates_.pop_back()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), later);
    reached += candidates_.back().share;
    pages.push_back(candidates_.back().page);
  }
}

// Chooses the pages that the tiles of one head need, for write_block_lists. One thread.
class TileChooser {
 public:
  TileChooser(const AdaptiveParams& params, size_t number, const kernels::cpu::Context& context)
      : masses_({.q = params.q,
                 .num_query_heads = params.num_query_heads,
                 .head = params.heads[number],
                 .scale = params.scale,
                 .kv = params.kv},
                context),
        row_choice_(params.rules[number]),
        takes_everything_(kernels::takes_everything(params.rules[number])),
        num_rows_(params.sampled_rows),
        first_dense_position_(kernels::first_dense_position(params.kv.num_tokens)) {}

  void choose(std::span<const RowTile> tiles, std::span<Pages> lists) {
    for (size_t i = 0; i < tiles.size(); ++i) choose(tiles[i], lists[i]);
  }

 private:
  void choose(const RowTile& tile, Pages& pages);

  ExactMasses masses_;
  RowChoice row_choice_;
  bool takes_everything_;
  int64_t num_rows_;
  int64_t first_dense_position_;
};

void TileChooser::choose(const RowTile& tile, Pages& pages) {
  const auto num_pages = static_cast<size_t>(causal_pages(tile));
  pages = first_pages(causal_pages(tile));
  if (takes_everything_ || tile.position >= first_dense_position_) return;
  std::erase_if(pages,
                [&](int32_t page) { return !is_kept(static_cast<size_t>(page), num_pages); });
  masses_.compute(tile, num_rows_);
  for (int64_t row = 0; row < masses_.num_rows(); ++row) {
    row_choice_.choose(masses_.log_masses(row), pages);
  }
}

}  // namespace

void build_exact(const AdaptiveParams& params, const kernels::cpu::Context& context) {
  check_adaptive(params);
  for (size_t number = 0; number < params.heads.size(); ++number) {
    kernels::cpu::write_block_lists(params.index, params.heads[number], params.tiles,
                                    context.num_threads,
                                    [&] { return TileChooser(params, number, context); });
  }
}

}  // namespace millrace::bench
