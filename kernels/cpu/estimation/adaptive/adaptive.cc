// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "common/check.h"
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
      : rule_(params.rules[number]),
        scan_(params, number, pages, context),
        masses_(static_cast<size_t>(pages.num_pages())) {}

  void choose(std::span<const RowTile> tiles, std::span<std::vector<int32_t>> lists) {
    scan_.scan(tiles);
    for (size_t i = 0; i < tiles.size(); ++i) {
      const int64_t num_pages = causal_pages(tiles[i]);
      for (int64_t row = 0; row < scan_.num_rows(i); ++row) {
        scan_.masses(i, row, num_pages, masses_.data());
        cover_row(num_pages, lists[i]);
      }
      for (const int64_t page : kept_pages(num_pages)) {
        lists[i].push_back(static_cast<int32_t>(page));
      }
    }
  }

 private:
  // In a short prompt some of them are the same page.
  static std::array<int64_t, 3> kept_pages(int64_t num_pages) {
    return {0, std::max<int64_t>(num_pages - 2, 0), num_pages - 1};
  }

  // Removes the masses of the kept pages from masses_, and returns their sum.
  double take_kept(int64_t num_pages) {
    double kept = 0;
    for (const int64_t page : kept_pages(num_pages)) {
      kept += double{masses_[static_cast<size_t>(page)]};
      masses_[static_cast<size_t>(page)] = 0;
    }
    return kept;
  }

  // Adds the pages that the row needs besides the kept ones.
  void cover_row(int64_t num_pages, std::vector<int32_t>& list) {
    const double kept = take_kept(num_pages);
    double far = 0;
    for (int64_t page = 0; page < num_pages; ++page)
      far += double{masses_[static_cast<size_t>(page)]};
    const double total = kept + far;
    // The share of the total minus what is kept, computed without a difference of two large sums.
    const auto besides_kept = [&](float share) { return far - (1 - double{share}) * total; };
    const double by_rule = std::min(double{rule_.gamma} * far, besides_kept(rule_.enough));
    const double target = std::max(by_rule, besides_kept(rule_.min_recall));
    if (target <= 0) return;

    // All pages of at most this mass can be left out: together they are no more than what may be.
    const double negligible = (far - target) / static_cast<double>(num_pages);
    ranking_.clear();
    for (int64_t page = 0; page < num_pages; ++page) {
      const float mass = masses_[static_cast<size_t>(page)];
      if (!(double{mass} <= negligible)) ranking_.add(static_cast<int32_t>(page), mass);
    }
    ranking_.cover(target, list);
  }

  AdaptiveRule rule_;
  RowScan scan_;
  std::vector<float> masses_;
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
