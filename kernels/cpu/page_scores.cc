#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "common/units.h"
#include "kernels/api/coverage.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/last_row_scores.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/parallel_tasks.h"

namespace millrace::kernels::cpu {
namespace {

// Marks the keys of a page that a tile covers. Pages come in ascending order.
class CoverageCursor {
 public:
  explicit CoverageCursor(const TileCoverage& coverage) : coverage_(coverage) {}

  // covered[i] for key first + i.
  void next_page(int64_t first, std::array<bool, kPageTokens>& covered) {
    covered.fill(false);
    const int64_t end = first + kPageTokens;
    const auto& ranges = coverage_.ranges;
    while (range_ < ranges.size() && ranges[range_].end <= first) ++range_;
    for (size_t r = range_; r < ranges.size() && ranges[r].begin < end; ++r) {
      const int64_t from = std::max(ranges[r].begin, first) - first;
      const int64_t to = std::min(ranges[r].end, end) - first;
      std::fill(covered.begin() + from, covered.begin() + to, true);
    }
    const auto& columns = coverage_.columns;
    for (; column_ < columns.size() && columns[column_] < end; ++column_) {
      covered[static_cast<size_t>(columns[column_] - first)] = true;
    }
  }

 private:
  const TileCoverage& coverage_;
  size_t range_ = 0;
  size_t column_ = 0;
};

// Mass of one recall tile's rows, in all and within the index.
class TileRecall {
 public:
  TileRecall(const HeadIndex& index, const RowTile& tile, int64_t tile_number)
      : tile_(tile), coverage_(coverage_of(index, tile, tile_number)), cursor_(coverage_) {}
  TileRecall(const TileRecall&) = delete;  // cursor_ refers to coverage_
  TileRecall& operator=(const TileRecall&) = delete;

  // p: [num_keys, kScoreRows] of the page's keys.
  void add_page(int64_t first, int64_t num_keys, const float* p) {
    cursor_.next_page(first, is_covered_);
    for (int64_t k = 0; k < num_keys; ++k) {
      const float* rows = p + k * kScoreRows + tile_.local_row;
      double mass = 0;
      for (int64_t r = 0; r < tile_.num_rows; ++r) mass += static_cast<double>(rows[r]);
      total_ += mass;
      if (is_covered_[static_cast<size_t>(k)]) covered_ += mass;
    }
  }

  double total() const { return total_; }
  double covered() const { return covered_; }

 private:
  static TileCoverage coverage_of(const HeadIndex& index, const RowTile& tile, int64_t number) {
    TileCoverage coverage;
    tile_coverage(index, tile, number, /*dense=*/false, coverage);
    return coverage;
  }

  RowTile tile_;
  TileCoverage coverage_;
  CoverageCursor cursor_;
  std::array<bool, kPageTokens> is_covered_ = {};
  double total_ = 0;
  double covered_ = 0;
};

void score_head(const PageScoresParams& params, size_t number, const Context& context,
                ScoreTile& tile) {
  const int64_t num_tokens = params.kv.num_tokens;
  const int64_t num_rows = params.last.num_rows;
  const int32_t head = params.heads[number];
  const LastRowScores scores(params.last, params.kv, head, context);
  const auto lse = padded_lse(params.lse + static_cast<int64_t>(number) * num_rows, num_rows);
  float* page_scores =
      params.page_scores + static_cast<int64_t>(number) * ceil_div(num_tokens, kPageTokens);

  std::vector<std::unique_ptr<TileRecall>> recalls;
  for (size_t i = 0; i < params.recall_tiles.size(); ++i) {
    recalls.push_back(std::make_unique<TileRecall>(params.index.head(head), params.recall_tiles[i],
                                                   params.recall_tile_numbers[i]));
  }
  std::array<float, kPageTokens> key_sums;
  for (int64_t first = 0; first < num_tokens; first += kPageTokens) {
    const int64_t num_keys = std::min(kPageTokens, num_tokens - first);
    scores.probabilities(first, num_keys, lse, tile);
    estimation_kernels(context.simd).sum_rows(tile.scores.data(), num_keys, key_sums.data());
    double mass = 0;
    for (int64_t k = 0; k < num_keys; ++k) {
      mass += static_cast<double>(key_sums[static_cast<size_t>(k)]);
    }
    page_scores[first / kPageTokens] = static_cast<float>(mass / static_cast<double>(num_rows));
    for (auto& recall : recalls) recall->add_page(first, num_keys, tile.scores.data());
  }

  if (recalls.empty()) return;
  double total = 0;
  double covered = 0;
  for (const auto& recall : recalls) {
    total += recall->total();
    covered += recall->covered();
  }
  params.recall[number] = static_cast<float>(covered / total);
}

}  // namespace

void page_scores(const PageScoresParams& params, const Context& context) {
  check_last_rows(params.last, params.kv);
  check_recall_tiles(params);
  parallel_tasks(static_cast<int64_t>(params.heads.size()), context.num_threads, [&] {
    return [&, tile = ScoreTile(params.kv.head_dim)](int64_t number) mutable {
      score_head(params, static_cast<size_t>(number), context, tile);
    };
  });
}

}  // namespace millrace::kernels::cpu
