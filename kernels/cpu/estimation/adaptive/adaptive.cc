// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/estimation/adaptive/key_pages.h"
#include "kernels/cpu/estimation/adaptive/row_scan.h"
#include "kernels/cpu/estimation/block_lists.h"
#include "kernels/cpu/estimation/ranking.h"
#include "kernels/cpu/runtime/operations.h"

namespace millrace::kernels::cpu {
namespace {

// Chooses pages for the row tiles of one head. One per thread.
class AdaptiveChooser {
 public:
  AdaptiveChooser(const AdaptiveParams& params, size_t number, const KeyPages& pages,
                  const Context& context)
      : rule_(params.rules[number]), scan_(params, number, pages, context) {}

  void choose(std::span<const RowTile> tiles, std::span<std::vector<int32_t>> lists) {
    scan_.scan(tiles);
    for (size_t i = 0; i < tiles.size(); ++i) choose_pages(i, causal_pages(tiles[i]), lists[i]);
  }

 private:
  void choose_pages(size_t tile, int64_t num_pages, std::vector<int32_t>& list) {
    const size_t num_kept = RowScan::num_kept(num_pages);
    for (int64_t row = 0; row < scan_.num_rows(tile); ++row) {
      const RowScan::Scanned scanned = scan_.row(tile, row);
      if (row == 0) list.assign(scanned.pages.begin(), scanned.pages.begin() + num_kept);
      if (cover_row(scanned, num_kept, list)) continue;
      list.resize(static_cast<size_t>(num_pages));
      std::iota(list.begin(), list.end(), 0);
      return;
    }
  }

  // Adds the pages that the row needs besides the kept ones. False if a mass is not a number.
  bool cover_row(const RowScan::Scanned& scanned, size_t num_kept, std::vector<int32_t>& list) {
    const double kept = sum(scanned.masses.first(num_kept));
    const std::span<const float> masses = scanned.masses.subspan(num_kept);
    const double far = sum(masses);
    const double total = kept + far;
    if (std::isnan(total)) return false;
    // The share of the total minus what is kept, computed without a difference of two large sums.
    const auto besides_kept = [&](float share) { return far - (1 - double{share}) * total; };
    const double by_rule = std::min(double{rule_.gamma} * far, besides_kept(rule_.enough));
    const double target = std::max(by_rule, besides_kept(rule_.min_recall));
    if (target <= 0) return true;

    // All pages of at most this mass can be left out: together they are no more than what may be.
    const double negligible = (far - target) / static_cast<double>(masses.size());
    ranking_.clear();
    for (size_t i = 0; i < masses.size(); ++i) {
      if (double{masses[i]} > negligible) ranking_.add(scanned.pages[num_kept + i], masses[i]);
    }
    ranking_.cover(target, list);
    return true;
  }

  static double sum(std::span<const float> masses) {
    return std::accumulate(masses.begin(), masses.end(), 0.0);
  }

  AdaptiveRule rule_;
  RowScan scan_;
  Ranking ranking_;
};

void write_dense_lists(const IndexView& index, int32_t head) {
  std::fill_n(index.block_count + head * index.shape.num_tiles, index.shape.num_tiles, kDenseTile);
  std::fill_n(index.block_begin + head * index.shape.num_tiles, index.shape.num_tiles, 0);
}

}  // namespace

void build_adaptive(const AdaptiveParams& params, const Context& context) {
  check_adaptive(params);
  // One kv head at a time: its keys in int8 take half or a quarter of the memory of its K.
  for (int32_t kv_head = 0; kv_head < params.kv.num_kv_heads; ++kv_head) {
    std::vector<size_t> numbers;
    for (size_t number = 0; number < params.heads.size(); ++number) {
      if (kv_head_of(params.heads[number], params.num_query_heads, params.kv) != kv_head) continue;
      if (takes_everything(params.rules[number])) {
        write_dense_lists(params.index, params.heads[number]);
      } else {
        numbers.push_back(number);
      }
    }
    if (numbers.empty()) continue;
    const KeyPages pages(params.kv, kv_head, context);
    for (const size_t number : numbers) {
      write_block_lists(params.index, params.heads[number], params.tiles, context.num_threads,
                        [&] { return AdaptiveChooser(params, number, pages, context); });
    }
  }
}

}  // namespace millrace::kernels::cpu
