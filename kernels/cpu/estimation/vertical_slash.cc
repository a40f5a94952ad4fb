// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/estimation/ranking.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_tasks.h"

namespace millrace::kernels::cpu {
namespace {

// The best `count` of values[0, num_tokens), positions below `num_forced` first; ascending.
std::vector<int32_t> select(const float* values, int64_t num_tokens, int64_t count,
                            int64_t num_forced, Ranking& ranking) {
  ranking.clear();
  ranking.reserve(static_cast<size_t>(num_tokens));
  for (int32_t i = 0; i < num_tokens; ++i) {
    if (i < num_forced) {
      ranking.add_forced(i);
    } else {
      ranking.add(i, values[i]);
    }
  }
  std::vector<int32_t> chosen;
  chosen.reserve(static_cast<size_t>(count));
  ranking.best(static_cast<size_t>(count), chosen);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// Ascending offsets as bands. Two offsets at most kTileRows apart share a band: a full tile's key
// ranges of the two meet or overlap, so the offsets between them come for free.
std::vector<Band> bands_of(const std::vector<int32_t>& offsets) {
  std::vector<Band> bands;
  for (const int32_t offset : offsets) {
    if (!bands.empty() && offset - bands.back().hi <= kTileRows) {
      bands.back().hi = offset;
    } else {
      bands.push_back({.lo = offset, .hi = offset});
    }
  }
  return bands;
}

// Merges the closest neighbours until `capacity` bands are left. Bands only grow, so no offset is
// lost. Ties go to the smaller offset.
void merge_closest(size_t capacity, Ranking& ranking, std::vector<Band>& bands) {
  if (bands.size() <= capacity) return;
  ranking.clear();
  // Gap i is before band i + 1. Offsets are below 2^31, so two gaps that differ by less than 2^-24
  // of themselves may be equal as floats; the smaller offset then decides, as for true ties.
  for (size_t i = 0; i + 1 < bands.size(); ++i) {
    ranking.add(static_cast<int32_t>(i), -static_cast<float>(bands[i + 1].lo - bands[i].hi));
  }
  std::vector<int32_t> closed;
  ranking.best(bands.size() - capacity, closed);
  std::vector<bool> is_closed(bands.size());
  for (const int32_t gap : closed) is_closed[static_cast<size_t>(gap)] = true;

  size_t last = 0;
  for (size_t i = 1; i < bands.size(); ++i) {
    if (is_closed[i - 1]) {
      bands[last].hi = bands[i].hi;
    } else {
      bands[++last] = bands[i];
    }
  }
  bands.resize(last + 1);
}

void build_head(const VerticalSlashParams& params, size_t number, Ranking& ranking) {
  const IndexShape& shape = params.index.shape;
  const int64_t num_tokens = params.num_tokens;
  const int32_t head = params.heads[number];
  const VerticalSlashBudget budget = checked_budget(params, number);

  const float* column_sums = params.column_sums + static_cast<int64_t>(number) * num_tokens;
  const auto columns = select(column_sums, num_tokens, budget.verticals, kForcedColumns, ranking);
  std::copy(columns.begin(), columns.end(),
            params.index.columns + int64_t{head} * shape.max_columns);
  params.index.num_columns[head] = static_cast<int32_t>(columns.size());

  const float* diagonal_sums = params.diagonal_sums + static_cast<int64_t>(number) * num_tokens;
  auto bands = bands_of(select(diagonal_sums, num_tokens, budget.slashes, kForcedOffsets, ranking));
  merge_closest(static_cast<size_t>(shape.max_bands), ranking, bands);
  std::copy(bands.begin(), bands.end(), params.index.bands + int64_t{head} * shape.max_bands);
  params.index.num_bands[head] = static_cast<int32_t>(bands.size());
}

}  // namespace

void build_vertical_slash(const VerticalSlashParams& params, const Context& context) {
  check_vertical_slash(params);
  parallel_tasks(static_cast<int64_t>(params.heads.size()), context.num_threads, [&] {
    return [&, ranking = Ranking()](int64_t number) mutable {
      build_head(params, static_cast<size_t>(number), ranking);
    };
  });
}

}  // namespace millrace::kernels::cpu
