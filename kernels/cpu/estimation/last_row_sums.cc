// SPDX-License-Identifier: Apache-2.0
// Work is divided by head and key range. Ranges have a fixed length and are merged in order, so the
// sums do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/units.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/estimation/row_scores.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_tasks.h"

namespace millrace::kernels::cpu {
namespace {

// Long enough that the 63 diagonals that neighbouring ranges share cost nothing compared with the
// products, short enough that a few heads of 16K tokens keep many cores busy.
constexpr int64_t kRangeTokens = 2048;

// One head of the call.
class HeadSums {
 public:
  HeadSums(const LastRowSumsParams& params, int64_t number, const Context& context)
      : num_rows_(params.last.num_rows),
        first_position_(params.last.first_position),
        num_tokens_(params.kv.num_tokens),
        column_sums_(params.column_sums + number * num_tokens_),
        diagonal_sums_(params.diagonal_sums + number * num_tokens_),
        lse_(params.lse + number * num_rows_),
        scores_(last_row_scores(params.last, params.kv, params.heads[static_cast<size_t>(number)],
                                context)),
        kernels_(estimation_kernels(context.simd)),
        statistics_(static_cast<size_t>(ceil_div(num_tokens_, kRangeTokens))),
        range_diagonals_(statistics_.size()) {}

  // First pass, over one range.
  void measure(int64_t range, ScoreTile& tile) {
    RowStatistics& statistics = statistics_[static_cast<size_t>(range)];
    const int64_t end = end_of(range);
    for (int64_t key = range * kRangeTokens; key < end; key += kScoreKeys) {
      const int64_t num_keys = std::min(kScoreKeys, end - key);
      scores_.score(key, num_keys, tile);
      statistics.add(tile, num_keys, kernels_);
    }
  }

  void merge_statistics() {
    for (size_t row = 0; row < static_cast<size_t>(num_rows_); ++row) {
      float maximum = std::numeric_limits<float>::lowest();
      for (const auto& range : statistics_) maximum = std::max(maximum, range.maximum[row]);
      double sum = 0;
      for (const auto& range : statistics_) {
        sum += range.sum[row] * std::exp(double{range.maximum[row]} - double{maximum});
      }
      lse_[row] = static_cast<float>(double{maximum} + std::log(sum));
    }
  }

  // Second pass, over one range. Entry i of a range's diagonals is offset first_offset(range) + i.
  void sum(int64_t range, ScoreTile& tile) {
    const auto lse = padded_lse(lse_, num_rows_);
    const int64_t begin = range * kRangeTokens;
    const int64_t end = end_of(range);
    std::vector<float>& diagonals = range_diagonals_[static_cast<size_t>(range)];
    diagonals.assign(static_cast<size_t>(end - begin + kScoreRows - 1), 0.0F);
    for (int64_t key = begin; key < end; key += kScoreKeys) {
      const int64_t num_keys = std::min(kScoreKeys, end - key);
      scores_.probabilities(key, num_keys, lse, tile);
      kernels_.sum_rows(tile.scores.data(), num_keys, column_sums_ + key);
      kernels_.sum_diagonals(tile.scores.data(), num_keys,
                             diagonals.data() + (end - key - num_keys));
    }
  }

  void merge_diagonals() {
    std::fill_n(diagonal_sums_, num_tokens_, 0.0F);
    for (size_t range = 0; range < range_diagonals_.size(); ++range) {
      const int64_t first_offset = first_position_ - (end_of(static_cast<int64_t>(range)) - 1);
      const std::vector<float>& diagonals = range_diagonals_[range];
      const int64_t end =
          std::min<int64_t>(static_cast<int64_t>(diagonals.size()), num_tokens_ - first_offset);
      for (int64_t i = std::max<int64_t>(-first_offset, 0); i < end; ++i) {
        diagonal_sums_[first_offset + i] += diagonals[static_cast<size_t>(i)];
      }
    }
  }

 private:
  int64_t end_of(int64_t range) const { return std::min((range + 1) * kRangeTokens, num_tokens_); }

  int64_t num_rows_;
  int64_t first_position_;
  int64_t num_tokens_;
  float* column_sums_;
  float* diagonal_sums_;
  float* lse_;
  RowScores scores_;
  const EstimationKernels& kernels_;
  std::vector<RowStatistics> statistics_;
  std::vector<std::vector<float>> range_diagonals_;
};

}  // namespace

void last_row_sums(const LastRowSumsParams& params, const Context& context) {
  check_last_rows(params.last, params.kv);
  std::vector<HeadSums> sums;
  for (size_t number = 0; number < params.heads.size(); ++number) {
    sums.emplace_back(params, static_cast<int64_t>(number), context);
  }
  const auto num_heads = static_cast<int64_t>(sums.size());
  const int64_t num_ranges = ceil_div(params.kv.num_tokens, kRangeTokens);
  const auto for_each_range = [&](auto pass) {
    parallel_tasks(num_heads * num_ranges, context.num_threads, [&] {
      return [&, tile = ScoreTile(params.kv.head_dim)](int64_t task) mutable {
        pass(sums[static_cast<size_t>(task / num_ranges)], task % num_ranges, tile);
      };
    });
  };
  for_each_range([](HeadSums& head, int64_t range, ScoreTile& tile) { head.measure(range, tile); });
  for (HeadSums& head : sums) head.merge_statistics();
  for_each_range([](HeadSums& head, int64_t range, ScoreTile& tile) { head.sum(range, tile); });
  parallel_tasks(num_heads, context.num_threads, [&] {
    return [&](int64_t head) { sums[static_cast<size_t>(head)].merge_diagonals(); };
  });
}

}  // namespace millrace::kernels::cpu
