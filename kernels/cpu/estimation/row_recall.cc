// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/units.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/estimation/row_scores.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_tasks.h"

namespace millrace::kernels::cpu {
namespace {

// Measures up to kScoreRows of one head's measured rows, from `first` on.
void measure(const RowRecallParams& params, size_t number, int64_t first, const Context& context,
             ScoreTile& tile) {
  const int64_t num_measured = std::ssize(params.rows);
  const auto rows = params.rows.subspan(
      static_cast<size_t>(first), static_cast<size_t>(std::min(kScoreRows, num_measured - first)));
  const int32_t head = params.heads[number];
  const int64_t dim = params.kv.head_dim;
  std::vector<int64_t> positions;
  for (const MeasuredRow& row : rows) positions.push_back(row.position);
  RowScores scores(positions, params.kv, kv_head_of(head, params.num_query_heads, params.kv),
                   context);
  const QueryRows queries(params.q, params.kv, params.num_query_heads, head, context);
  std::vector<float> query(static_cast<size_t>(dim));
  for (size_t i = 0; i < rows.size(); ++i) {
    queries.load(rows[i].local_row, 1, query.data());
    scores.set_row(static_cast<int64_t>(i), query.data(), params.scale);
  }

  RowStatistics statistics;
  const int64_t end = positions.back() + 1;
  for (int64_t key = 0; key < end; key += kScoreKeys) {
    const int64_t num_keys = std::min(kScoreKeys, end - key);
    scores.score(key, num_keys, tile);
    statistics.add(tile, num_keys, estimation_kernels(context.simd));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const double lse = double{statistics.maximum[i]} + std::log(statistics.sum[i]);
    const double attended = double{params.lse[head * params.num_rows + rows[i].local_row]};
    params.recall[static_cast<int64_t>(number) * num_measured + first + static_cast<int64_t>(i)] =
        static_cast<float>(std::min(std::exp(attended - lse), 1.0));
  }
}

}  // namespace

void row_recall(const RowRecallParams& params, const Context& context) {
  check_row_recall(params);
  const int64_t num_groups = ceil_div(std::ssize(params.rows), kScoreRows);
  parallel_tasks(std::ssize(params.heads) * num_groups, context.num_threads, [&] {
    return [&, tile = ScoreTile(params.kv.head_dim)](int64_t task) mutable {
      measure(params, static_cast<size_t>(task / num_groups), task % num_groups * kScoreRows,
              context, tile);
    };
  });
}

}  // namespace millrace::kernels::cpu
