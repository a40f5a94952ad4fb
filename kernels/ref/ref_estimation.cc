// SPDX-License-Identifier: Apache-2.0
// Estimation by its definition (kernels/api/estimation.h), in double: every score is computed where
// it is needed, and every selection is a full sort.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <set>
#include <vector>

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

// The pages of one head, each as the keys that it holds.
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

// Merges the closest pair of neighbours; of equally close pairs, the earlier.
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

// Appends the lists of one head, tile after tile; see kernels/index/index.h for kDenseTile.
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

// A page as a scan and its filter read it, all in int8 but the spread. Also a span of pages, without keys.
struct QuantisedPage {
  Vector centre;
  float centre_step = 0;
  Vectors keys;
  float step = 0;
  Vector spread;  // mean square of each channel of the keys, in steps
};

// Quantises to int8 and returns the step, the largest magnitude over 127, in float as the
// definition says. If a value is infinite or NaN, the step is NaN, and so is whatever is multiplied
// by it.
float quantise(Vectors& vectors) {
  float largest = 0;
  for (const Vector& v : vectors) {
    for (const double x : v) {
      const float magnitude = std::abs(static_cast<float>(x));
      if (!std::isfinite(magnitude)) return std::numeric_limits<float>::quiet_NaN();
      largest = std::max(largest, magnitude);
    }
  }
  const float inverse = largest > 0 ? 127.0F / largest : 0.0F;
  for (Vector& v : vectors) {
    for (double& x : v) x = std::nearbyint(static_cast<float>(x) * inverse);
  }
  return largest / 127.0F;
}

double squared_distance(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
  return sum;
}

// The rows of a tile that a scan multiplies with keys. All numbers are whole, so doubles are exact.
std::vector<int64_t> sampled_rows_of(Vectors rows, int32_t count) {
  const auto num_rows = static_cast<double>(rows.size());
  if (std::isnan(quantise(rows))) {
    for (Vector& row : rows) std::ranges::fill(row, 0);
  }
  Vector sum(rows.front().size());
  for (const Vector& row : rows) {
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += row[d];
  }
  std::vector<int64_t> chosen;
  while (std::ssize(chosen) < std::min<int64_t>(count, std::ssize(rows))) {
    Vector distances;
    for (size_t r = 0; r < rows.size(); ++r) {
      Vector scaled = rows[r];  // by the number of rows, because the sum is the mean times it
      for (double& x : scaled) x *= num_rows;
      double distance = squared_distance(scaled, sum);
      if (!chosen.empty()) distance = std::numeric_limits<double>::infinity();
      for (const int64_t other : chosen) {
        distance = std::min(distance, squared_distance(rows[r], rows[static_cast<size_t>(other)]));
      }
      distances.push_back(std::ranges::count(chosen, static_cast<int64_t>(r)) > 0 ? -1 : distance);
    }
    chosen.push_back(std::ranges::max_element(distances) - distances.begin());
  }
  return chosen;
}

double to_half(double x) {
  return rounded_to(DType::kFloat16, static_cast<float>(x));
}

// Quantises one vector; `step` is its step.
Vector quantised(const Vector& vector, float& step) {
  Vectors one = {vector};
  step = quantise(one);
  return one.front();
}

// Channel d of a page's or span's centre.
double centre_of(const QuantisedPage& page, size_t d) {
  return page.centre_step * static_cast<float>(page.centre[d]);
}

QuantisedPage quantised_page(Vectors keys) {
  QuantisedPage page;
  Vector mean;
  const float share = 1.0F / static_cast<float>(keys.size());
  for (size_t d = 0; d < keys.front().size(); ++d) {
    float sum = 0;
    for (const Vector& key : keys) sum += static_cast<float>(key[d]);
    mean.push_back(sum * share);
  }
  page.centre = quantised(mean, page.centre_step);
  for (size_t d = 0; d < mean.size(); ++d) {
    for (Vector& key : keys) {
      key[d] = static_cast<float>(key[d]) - static_cast<float>(centre_of(page, d));
    }
  }
  page.step = quantise(keys);
  for (size_t d = 0; d < mean.size(); ++d) {
    double sum = 0;
    for (const Vector& key : keys) sum += key[d] * key[d];
    page.spread.push_back(to_half(sum * share));
  }
  page.keys = std::move(keys);
  return page;
}

QuantisedPage span_of(std::span<const QuantisedPage> pages) {
  QuantisedPage span;
  const auto count = static_cast<double>(pages.size());
  Vector mean(pages.front().centre.size());
  for (size_t d = 0; d < mean.size(); ++d) {
    for (const QuantisedPage& page : pages) mean[d] += centre_of(page, d) / count;
  }
  span.centre = quantised(mean, span.centre_step);
  double largest = 0;
  for (size_t d = 0; d < mean.size(); ++d) {
    double square = 0;
    for (const QuantisedPage& page : pages) {
      const double apart = centre_of(page, d) - centre_of(span, d);
      square += (double{page.step} * page.step * page.spread[d] + apart * apart) / count;
    }
    span.spread.push_back(square);
    largest = std::max(largest, square);
  }
  span.step = static_cast<float>(std::sqrt(largest) / 127);
  for (double& x : span.spread) {
    if (largest > 0) x = to_half(x / (double{span.step} * span.step));
  }
  return span;
}

// A sampled row as the scan and its filter read it.
struct QuantisedRow {
  Vector values;
  float step = 0;
  Vector squares;
};

QuantisedRow quantised_row(const Vector& row) {
  QuantisedRow result;
  result.values = quantised(row, result.step);
  for (const double x : result.values) result.squares.push_back(to_half(x * x));
  return result;
}

// log2 w(r, P) in steps, for a row and the first `num_keys` keys of a page.
double mass_steps(const QuantisedRow& row, float scale, const QuantisedPage& page,
                  int64_t num_keys) {
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < num_keys; ++j) {
    largest = std::max(largest, dot(row.values, page.keys[static_cast<size_t>(j)]));
  }
  const double score =
      double{page.centre_step} * dot(row.values, page.centre) + double{page.step} * largest;
  return std::nearbyint(double{scale} * double{row.step} * score * std::numbers::log2e *
                        kMassStepsPerOctave);
}

// log e_n(r, P) for n deviations
double estimate(const QuantisedRow& row, double scale, const QuantisedPage& page,
                float deviations) {
  const double deviation = std::sqrt(dot(row.squares, page.spread));
  return scale * row.step *
         (page.centre_step * dot(row.values, page.centre) +
          double{deviations} * page.step * deviation);
}

// The far pages that are scanned for a row: those that one of the estimates wants. `kept`: log of the mass of the kept
// pages.
std::set<int32_t> filtered_pages(const QuantisedRow& row, double scale, int32_t num_pages,
                                 std::span<const QuantisedPage> pages,
                                 std::span<const QuantisedPage> spans, double kept,
                                 const AdaptiveRule& rule) {
  const int32_t end = num_pages - 2;  // of the far pages
  std::set<int32_t> result;
  if (end <= 1) return result;
  for (int number = 0; number < kFilterEstimates; ++number) {
    const float deviations = filter_deviations(number);
    Vector estimates;
    const auto whole_spans = (end - 1) / kSpanPages;
    for (int64_t s = 0; s < whole_spans; ++s) {
      estimates.push_back(estimate(row, scale, spans[static_cast<size_t>(s)], deviations) +
                          std::log(double{kSpanPages}));
    }
    for (auto p = static_cast<int32_t>(1 + whole_spans * kSpanPages); p < end; ++p) {
      estimates.push_back(estimate(row, scale, pages[static_cast<size_t>(p)], deviations));
    }
    const double far = log_sum_exp(estimates);
    const double base = std::max(far, kept);
    const float left = filtered_mass(rule, static_cast<float>(std::exp(far - base)),
                                     static_cast<float>(std::exp(kept - base)));
    const double threshold = std::log(left) + base - std::log(num_pages);
    for (int32_t p = 1; p < end; ++p) {
      const double mass = estimate(row, scale, pages[static_cast<size_t>(p)], deviations);
      if (!(mass < threshold)) result.insert(p);
    }
  }
  return result;
}

// Adds the pages that a sampled row needs besides `kept`, which `chosen` already has. Pages that were not scanned
// have a mass of -inf.
void cover_row(const Vector& log_masses, const std::set<int32_t>& kept, const AdaptiveRule& rule,
               std::set<int32_t>& chosen) {
  const double total = log_sum_exp(log_masses);
  double kept_share = 0;
  for (const int32_t page : kept) {
    kept_share += std::exp(log_masses[static_cast<size_t>(page)] - total);
  }
  const double by_rule = std::min(rule.gamma * (1 - kept_share), rule.enough - kept_share);
  const double target = std::max(by_rule, rule.min_recall - kept_share);
  double reached = 0;
  for (const int32_t page : ranked(log_masses)) {
    if (kept.contains(page)) continue;
    if (reached >= target || std::isinf(log_masses[static_cast<size_t>(page)])) return;
    chosen.insert(page);
    reached += std::exp(log_masses[static_cast<size_t>(page)] - total);
  }
}

}  // namespace

void last_row_sums(const LastRowSumsParams& params) {
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
    std::vector<QuantisedPage> pages;
    for (Vectors& page : pages_of(params.kv, params.num_query_heads, head)) {
      pages.push_back(quantised_page(std::move(page)));
    }
    std::vector<std::set<int32_t>> lists;
    std::vector<QuantisedPage> spans;
    for (size_t first = 1; first + kSpanPages <= pages.size(); first += kSpanPages) {
      spans.push_back(span_of(std::span(pages).subspan(first, kSpanPages)));
    }
    for (const RowTile& tile : params.tiles) {
      const Vectors rows = query_rows(params.q, params.kv, params.num_query_heads, head, tile);
      const auto num_pages = static_cast<int32_t>(num_causal_pages(tile));
      const std::set<int32_t> kept = {0, std::max(num_pages - 2, 0), num_pages - 1};
      std::set<int32_t> chosen = kept;
      for (const int64_t r : sampled_rows_of(rows, params.sampled_rows)) {
        const QuantisedRow row = quantised_row(rows[static_cast<size_t>(r)]);
        Vector log_masses(static_cast<size_t>(num_pages), -std::numeric_limits<double>::infinity());
        const auto scan = [&](const std::set<int32_t>& scanned) {
          for (const int32_t p : scanned) {
            const int64_t visible = tile.position + r + 1 - p * kPageTokens;
            log_masses[static_cast<size_t>(p)] =
                mass_steps(row, params.scale, pages[static_cast<size_t>(p)],
                           std::min(visible, kPageTokens)) *
                std::numbers::ln2 / kMassStepsPerOctave;
          }
        };
        scan(kept);
        scan(filtered_pages(row, params.scale, num_pages, pages, spans, log_sum_exp(log_masses),
                            params.rules[h]));
        cover_row(log_masses, kept, params.rules[h], chosen);
      }
      if (takes_everything(params.rules[h])) {
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
        const int64_t position = params.last.first_position + static_cast<int64_t>(r);
        const bool hidden =
            params.window > 0 && static_cast<int64_t>(j) <= position - params.window;
        p[r][j] = hidden ? 0 : std::exp(p[r][j] - double{lse[r]});
        masses[j / kPageTokens] += p[r][j] / static_cast<double>(p.size());
      }
    }
    std::copy(masses.begin(), masses.end(),
              params.page_scores + static_cast<int64_t>(h) * num_pages);
  }
}

void row_recall(const RowRecallParams& params) {
  for (size_t h = 0; h < params.heads.size(); ++h) {
    const int32_t head = params.heads[h];
    for (size_t i = 0; i < params.rows.size(); ++i) {
      const auto [local_row, position] = params.rows[i];
      const Vector q = query_row(params.q, params.kv.dtype, local_row, head, params.num_query_heads,
                                 params.kv.head_dim);
      Vector scores;
      for (const Vector& key : keys_of(params.kv, params.num_query_heads, head, 0, position + 1)) {
        scores.push_back(params.scale * dot(q, key));
      }
      const double share =
          std::exp(double{params.lse[head * params.num_rows + local_row]} - log_sum_exp(scores));
      params.recall[h * params.rows.size() + i] = static_cast<float>(std::min(share, 1.0));
    }
  }
}

}  // namespace millrace::kernels::ref
