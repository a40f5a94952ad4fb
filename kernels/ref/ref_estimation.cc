// Estimation by its definition (kernels/api/estimation.h), in double: every score is computed where
// it is needed, every selection is a full sort.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <set>
#include <vector>

#include "kernels/api/coverage.h"
#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {
namespace {

using Vector = std::vector<double>;
using Vectors = std::vector<Vector>;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Vector mean(const Vectors& vectors) {
  Vector sum(vectors.front().size());
  for (const Vector& v : vectors) {
    for (size_t d = 0; d < v.size(); ++d) sum[d] += v[d];
  }
  for (double& x : sum) x /= static_cast<double>(vectors.size());
  return sum;
}

Vector query_row(const void* q, DType dtype, int64_t row, int32_t head, int32_t num_heads,
                 int32_t dim) {
  Vector out;
  for (int32_t d = 0; d < dim; ++d)
    out.push_back(load(q, dtype, (row * num_heads + head) * dim + d));
  return out;
}

Vectors query_rows(const void* q, const KvSlab& kv, int32_t num_heads, int32_t head,
                   const RowTile& tile) {
  Vectors rows;
  for (int64_t r = 0; r < tile.num_rows; ++r) {
    rows.push_back(query_row(q, kv.dtype, tile.local_row + r, head, num_heads, kv.head_dim));
  }
  return rows;
}

// The keys [begin, end) of the kv head that query head `head` reads.
Vectors keys_of(const KvSlab& kv, int32_t num_heads, int32_t head, int64_t begin, int64_t end) {
  const int64_t kv_head = head / (num_heads / kv.num_kv_heads);
  Vectors keys;
  for (int64_t j = begin; j < end; ++j) {
    Vector key;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      key.push_back(load(kv.k, kv.dtype, (kv_head * kv.token_stride + j) * kv.head_dim + d));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

// Pages of one head, each the keys it holds.
std::vector<Vectors> pages_of(const KvSlab& kv, int32_t num_heads, int32_t head) {
  std::vector<Vectors> pages;
  for (int64_t first = 0; first < kv.num_tokens; first += kPageTokens) {
    pages.push_back(
        keys_of(kv, num_heads, head, first, std::min(first + kPageTokens, kv.num_tokens)));
  }
  return pages;
}

// Positions of the largest values first, ties to the smaller position.
template <typename Values>
std::vector<int32_t> ranked(const Values& values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return order;
}

// scores[r][j] of the last rows over all keys; -inf past the diagonal.
Vectors last_row_scores(const LastRows& last, const KvSlab& kv, int32_t head) {
  const Vectors keys = keys_of(kv, last.num_query_heads, head, 0, kv.num_tokens);
  Vectors scores;
  for (int64_t r = 0; r < last.num_rows; ++r) {
    const Vector q = query_row(last.q, kv.dtype, r, head, last.num_query_heads, kv.head_dim);
    Vector row(keys.size(), -std::numeric_limits<double>::infinity());
    for (int64_t j = 0; j <= last.first_position + r; ++j) {
      row[static_cast<size_t>(j)] = last.scale * dot(q, keys[static_cast<size_t>(j)]);
    }
    scores.push_back(std::move(row));
  }
  return scores;
}

double log_sum_exp(const Vector& scores) {
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - maximum);
  return maximum + std::log(sum);
}

// The best `count` positions, those below num_forced before all others, ascending.
std::vector<int32_t> forced_top(const float* values, int64_t num_tokens, int64_t count,
                                int64_t num_forced) {
  Vector forced(values, values + num_tokens);
  std::fill_n(forced.begin(), std::min(num_forced, num_tokens),
              std::numeric_limits<double>::infinity());
  std::vector<int32_t> order = ranked(forced);
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

// Merges the closest pair of neighbours, the earlier of equals.
void merge_closest_pair(std::vector<Band>& bands) {
  size_t best = 0;
  for (size_t i = 1; i + 1 < bands.size(); ++i) {
    if (bands[i + 1].lo - bands[i].hi < bands[best + 1].lo - bands[best].hi) best = i;
  }
  bands[best].hi = bands[best + 1].hi;
  bands.erase(bands.begin() + static_cast<ptrdiff_t>(best) + 1);
}

std::vector<Band> bands_of(const std::vector<int32_t>& offsets, int32_t max_bands) {
  std::vector<Band> bands;
  for (const int32_t offset : offsets) bands.push_back({offset, offset});
  while (bands.size() > 1) {
    int32_t smallest_gap = std::numeric_limits<int32_t>::max();
    for (size_t i = 0; i + 1 < bands.size(); ++i) {
      smallest_gap = std::min(smallest_gap, bands[i + 1].lo - bands[i].hi);
    }
    const bool too_many = static_cast<int32_t>(bands.size()) > max_bands;
    if (smallest_gap > kTileRows && !too_many) break;
    merge_closest_pair(bands);
  }
  return bands;
}

int64_t num_causal_pages(const RowTile& tile) {
  return (tile.position + tile.num_rows + kPageTokens - 1) / kPageTokens;
}

// Lists of one head appended tile after tile; see kernels/api/index.h for kDenseTile.
void write_lists(const IndexView& index, int32_t head, std::span<const RowTile> tiles,
                 const std::vector<std::set<int32_t>>& lists) {
  int64_t used = 0;
  for (size_t t = 0; t < tiles.size(); ++t) {
    const int64_t tile = head * index.shape.num_tiles + static_cast<int64_t>(t);
    const auto count = static_cast<int64_t>(lists[t].size());
    index.block_begin[tile] = used;
    index.block_count[tile] = kDenseTile;
    const int64_t causal = num_causal_pages(tiles[t]);
    const bool too_long = 4 * count > 3 * causal || count > causal / 2 + 128;
    if (too_long || used + count > index.shape.max_blocks) continue;
    index.block_count[tile] = static_cast<int32_t>(count);
    std::copy(lists[t].begin(), lists[t].end(),
              index.blocks + head * index.shape.max_blocks + used);
    used += count;
  }
}

// The `count` vectors furthest from the mean of all, and the mean of the rest.
struct Split {
  Vectors outliers;
  Vector crowd_mean;
  int64_t crowd_size = 0;
};

Split split_outliers(const Vectors& vectors, int32_t count) {
  const Vector centre = mean(vectors);
  Vector distances;
  for (const Vector& v : vectors) {
    double distance = 0;
    for (size_t d = 0; d < v.size(); ++d) distance += (v[d] - centre[d]) * (v[d] - centre[d]);
    distances.push_back(distance);
  }
  Split split;
  Vectors crowd;
  for (const int32_t i : ranked(distances)) {
    const bool is_outlier = static_cast<int32_t>(split.outliers.size()) < count;
    (is_outlier ? split.outliers : crowd).push_back(vectors[static_cast<size_t>(i)]);
  }
  split.crowd_size = static_cast<int64_t>(crowd.size());
  if (!crowd.empty()) split.crowd_mean = mean(crowd);
  return split;
}

// log2 of the mass of a page for query q (scaled), in steps: the most that one of its
// representatives stands for, log of the number of keys plus its score.
double mass_steps(const Vector& q, const Split& page) {
  Vector terms;
  for (const Vector& key : page.outliers) terms.push_back(dot(q, key));
  if (page.crowd_size > 0) {
    terms.push_back(dot(q, page.crowd_mean) + std::log(static_cast<double>(page.crowd_size)));
  }
  const double largest = *std::max_element(terms.begin(), terms.end());
  return std::nearbyint(largest * std::numbers::log2e * kMassStepsPerOctave);
}

void cover_query(const Vector& q, std::span<const Split> pages, double gamma,
                 std::set<int32_t>& chosen) {
  Vector log_masses;
  for (const Split& page : pages) {
    log_masses.push_back(mass_steps(q, page) * std::numbers::ln2 / kMassStepsPerOctave);
  }
  const double total = log_sum_exp(log_masses);
  double reached = 0;
  for (const int32_t page : ranked(log_masses)) {
    if (reached >= gamma) return;
    chosen.insert(page);
    reached += std::exp(log_masses[static_cast<size_t>(page)] - total);
  }
}

}  // namespace

void probe(const ProbeParams& params) {
  const int64_t num_tokens = params.kv.num_tokens;
  for (size_t h = 0; h < params.heads.size(); ++h) {
    Vector columns(static_cast<size_t>(num_tokens));
    Vector diagonals(static_cast<size_t>(num_tokens));
    const Vectors scores = last_row_scores(params.last, params.kv, params.heads[h]);
    for (int64_t r = 0; r < params.last.num_rows; ++r) {
      const Vector& row = scores[static_cast<size_t>(r)];
      const double lse = log_sum_exp(row);
      params.lse[static_cast<int64_t>(h) * params.last.num_rows + r] = static_cast<float>(lse);
      const int64_t position = params.last.first_position + r;
      for (int64_t j = 0; j <= position; ++j) {
        const double p = std::exp(row[static_cast<size_t>(j)] - lse);
        columns[static_cast<size_t>(j)] += p;
        diagonals[static_cast<size_t>(position - j)] += p;
      }
    }
    const int64_t first = static_cast<int64_t>(h) * num_tokens;
    std::copy(columns.begin(), columns.end(), params.column_sums + first);
    std::copy(diagonals.begin(), diagonals.end(), params.diagonal_sums + first);
  }
}

void build_vertical_slash(const VerticalSlashParams& params) {
  const int64_t num_tokens = params.num_tokens;
  const IndexShape& shape = params.index.shape;
  for (size_t h = 0; h < params.heads.size(); ++h) {
    const int32_t head = params.heads[h];
    const int64_t first = static_cast<int64_t>(h) * num_tokens;
    const int64_t verticals =
        std::min<int64_t>(std::max(params.budgets[h].verticals, kForcedColumns), num_tokens);
    const auto columns =
        forced_top(params.column_sums + first, num_tokens, verticals, kForcedColumns);
    std::copy(columns.begin(), columns.end(),
              params.index.columns + int64_t{head} * shape.max_columns);
    params.index.num_columns[head] = static_cast<int32_t>(columns.size());

    const int64_t slashes =
        std::min<int64_t>(std::max(params.budgets[h].slashes, kFewestSlashes), num_tokens);
    const auto bands =
        bands_of(forced_top(params.diagonal_sums + first, num_tokens, slashes, kForcedOffsets),
                 shape.max_bands);
    std::copy(bands.begin(), bands.end(), params.index.bands + int64_t{head} * shape.max_bands);
    params.index.num_bands[head] = static_cast<int32_t>(bands.size());
  }
}

void build_block_sparse(const BlockSparseParams& params) {
  for (size_t h = 0; h < params.heads.size(); ++h) {
    const int32_t head = params.heads[h];
    Vectors page_means;
    for (const Vectors& page : pages_of(params.kv, params.num_query_heads, head)) {
      page_means.push_back(mean(page));
    }
    std::vector<std::set<int32_t>> lists;
    for (const RowTile& tile : params.tiles) {
      const Vector q = mean(query_rows(params.q, params.kv, params.num_query_heads, head, tile));
      const int64_t num_pages = num_causal_pages(tile);
      Vector scores;
      for (int64_t p = 0; p < num_pages; ++p) {
        scores.push_back(dot(q, page_means[static_cast<size_t>(p)]));
      }
      scores.front() = scores.back() = std::numeric_limits<double>::infinity();
      std::vector<int32_t> order = ranked(scores);
      order.resize(std::min(order.size(), static_cast<size_t>(std::max(params.top_k[h], 2))));
      lists.emplace_back(order.begin(), order.end());
    }
    write_lists(params.index, head, params.tiles, lists);
  }
}

void build_adaptive(const AdaptiveParams& params) {
  for (size_t h = 0; h < params.heads.size(); ++h) {
    const int32_t head = params.heads[h];
    std::vector<Split> pages;
    for (const Vectors& page : pages_of(params.kv, params.num_query_heads, head)) {
      pages.push_back(split_outliers(page, params.page_outliers));
    }
    std::vector<std::set<int32_t>> lists;
    for (const RowTile& tile : params.tiles) {
      const Vectors rows = query_rows(params.q, params.kv, params.num_query_heads, head, tile);
      Vectors representatives = split_outliers(rows, params.row_outliers).outliers;
      representatives.push_back(mean(rows));
      const auto num_pages = static_cast<int32_t>(num_causal_pages(tile));
      const auto causal = std::span(pages).first(static_cast<size_t>(num_pages));
      std::set<int32_t> chosen = {0, std::max(num_pages - 2, 0), num_pages - 1};
      for (Vector& q : representatives) {
        for (double& x : q) x *= params.scale;
        cover_query(q, causal, params.gamma[h], chosen);
      }
      if (params.gamma[h] >= 1) {
        for (int32_t p = 0; p < num_pages; ++p) chosen.insert(p);
      }
      lists.push_back(std::move(chosen));
    }
    write_lists(params.index, head, params.tiles, lists);
  }
}

void page_scores(const PageScoresParams& params) {
  const int64_t num_pages = (params.kv.num_tokens + kPageTokens - 1) / kPageTokens;
  for (size_t h = 0; h < params.heads.size(); ++h) {
    const float* lse = params.lse + static_cast<int64_t>(h) * params.last.num_rows;
    Vectors p = last_row_scores(params.last, params.kv, params.heads[h]);
    Vector masses(static_cast<size_t>(num_pages));
    for (size_t r = 0; r < p.size(); ++r) {
      for (size_t j = 0; j < p[r].size(); ++j) {
        p[r][j] = std::exp(p[r][j] - double{lse[r]});
        masses[j / kPageTokens] += p[r][j] / static_cast<double>(p.size());
      }
    }
    std::copy(masses.begin(), masses.end(),
              params.page_scores + static_cast<int64_t>(h) * num_pages);

    double total = 0;
    double covered = 0;
    for (size_t t = 0; t < params.recall_tiles.size(); ++t) {
      const RowTile& tile = params.recall_tiles[t];
      TileCoverage coverage;
      tile_coverage(params.index.head(params.heads[h]), tile, params.recall_tile_numbers[t],
                    /*dense=*/false, coverage);
      for (int64_t r = tile.local_row; r < tile.local_row + tile.num_rows; ++r) {
        const Vector& row = p[static_cast<size_t>(r)];
        total += std::accumulate(row.begin(), row.end(), 0.0);
        for (const KeyRange& range : coverage.ranges) {
          covered += std::accumulate(row.begin() + range.begin, row.begin() + range.end, 0.0);
        }
        for (const int32_t column : coverage.columns) covered += row[static_cast<size_t>(column)];
      }
    }
    if (!params.recall_tiles.empty()) params.recall[h] = static_cast<float>(covered / total);
  }
}

}  // namespace millrace::kernels::ref
