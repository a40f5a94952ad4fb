// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/reference_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "bench/millrace_bench/kernels/host_head.h"
#include "kernels/index/coverage.h"
#include "kernels/ref/operations.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::bench {

using kernels::RowTile;

namespace {

// Tiles near the beginning and in the middle, and the last one, which is dense.
std::vector<size_t> sampled_tiles(size_t num_tiles) {
  std::set<size_t> tiles;
  for (const size_t t : {size_t{0}, size_t{1}, num_tiles / 3, num_tiles * 3 / 4, num_tiles - 1}) {
    tiles.insert(std::min(t, num_tiles - 1));
  }
  return {tiles.begin(), tiles.end()};
}

std::vector<int64_t> keys_of(const kernels::TileCoverage& coverage, int64_t position) {
  std::vector<int64_t> keys;
  for (const auto& range : coverage.ranges) {
    for (int64_t k = range.begin; k < std::min(range.end, position + 1); ++k) keys.push_back(k);
  }
  for (const int32_t column : coverage.columns) {
    if (column <= position) keys.push_back(column);
  }
  return keys;
}

std::vector<int64_t> keys_of_window(int64_t window, int64_t position) {
  std::vector<int64_t> keys(static_cast<size_t>(std::min(window, position + 1)));
  std::iota(keys.begin(), keys.end(), position + 1 - std::ssize(keys));
  return keys;
}

// Softmax over `keys` in Real; `round` is applied to weights and to the result.
template <typename Real, typename Round>
std::vector<Real> attend(const std::vector<float>& q, const HostHead& head,
                         const std::vector<int64_t>& keys, Real scale, Round&& round) {
  const auto dim = static_cast<int64_t>(q.size());
  std::vector<Real> scores(keys.size());
  Real max = -std::numeric_limits<Real>::infinity();
  for (size_t i = 0; i < keys.size(); ++i) {
    Real dot = 0;
    for (int64_t d = 0; d < dim; ++d) {
      dot += Real{q[static_cast<size_t>(d)]} * head.k[static_cast<size_t>(keys[i] * dim + d)];
    }
    scores[i] = dot * scale;
    max = std::max(max, scores[i]);
  }
  Real sum = 0;
  std::vector<Real> out(q.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const Real weight = std::exp(scores[i] - max);
    sum += weight;
    const Real used = round(weight);
    for (int64_t d = 0; d < dim; ++d) {
      out[static_cast<size_t>(d)] += used * head.v[static_cast<size_t>(keys[i] * dim + d)];
    }
  }
  for (Real& x : out) x = round(x / sum);
  return out;
}

double largest_difference(const auto& values, const std::vector<double>& reference) {
  double largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(static_cast<double>(values[i]) - reference[i]);
    // A NaN counts as an infinite error.
    if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
  }
  return largest;
}

// One head with only the rows of sampled tiles, for the reference operations, which take the same
// parameters as a device.
struct SampledHead {
  std::vector<float> q, k;
  std::vector<RowTile> tiles;
  std::vector<size_t> numbers;  // numbers of the sampled tiles in the whole prompt

  kernels::KvSlab kv(const LayerShape& shape) const {
    return {.k = k.data(),
            .v = k.data(),
            .dtype = DType::kFloat32,
            .num_kv_heads = 1,
            .head_dim = shape.head_dim,
            .num_tokens = shape.num_tokens,
            .token_stride = shape.num_tokens};
  }
};

Result<SampledHead> sample_head(kernels::Device& device, const SampleLayer& layer, int32_t head) {
  SampledHead sampled;
  MR_ASSIGN_OR_RETURN(auto host, read_head(device, layer, head, /*with_v=*/false));
  sampled.k = std::move(host.k);
  sampled.numbers = sampled_tiles(layer.tiles().size());
  int64_t local_row = 0;
  for (const size_t number : sampled.numbers) {
    const RowTile& tile = layer.tiles()[number];
    sampled.tiles.push_back({local_row, tile.position, tile.num_rows});
    local_row += tile.num_rows;
    for (int64_t r = 0; r < tile.num_rows; ++r) {
      MR_ASSIGN_OR_RETURN(const auto row,
                          read_row(device, layer, layer.q(), tile.local_row + r, head));
      sampled.q.insert(sampled.q.end(), row.begin(), row.end());
    }
  }
  return sampled;
}

// The blocks of a tile, without those that kDenseTile stands for.
std::set<int32_t> blocks_of(const kernels::HeadIndex& head, size_t tile) {
  const int32_t count = head.block_count[tile];
  if (count == kernels::kDenseTile) return {-1};
  const int32_t* first = head.blocks + head.block_begin[tile];
  return {first, first + count};
}

CheckResult compare_blocks(const char* what, const HostIndex& index, int32_t head,
                           const HostIndex& expected, const SampledHead& sampled) {
  constexpr double kAllowedShare = 0.01;
  size_t different = 0, all = 0;
  for (size_t i = 0; i < sampled.numbers.size(); ++i) {
    const auto actual = blocks_of(index.view().head(head), sampled.numbers[i]);
    const auto wanted = blocks_of(expected.view().head(0), i);
    std::vector<int32_t> difference;
    std::ranges::set_symmetric_difference(actual, wanted, std::back_inserter(difference));
    different += difference.size();
    all += wanted.size();
  }
  return {.what = what,
          .error = static_cast<double>(different) / static_cast<double>(all),
          .allowed = kAllowedShare};
}

HostIndex room_for_blocks(const SampledHead& sampled) {
  int64_t blocks = 0;
  for (const auto& tile : sampled.tiles) blocks += tile.position / kernels::kTileRows + 1;
  return HostIndex({.num_heads = 1,
                    .max_bands = 1,
                    .max_columns = 1,
                    .num_tiles = std::ssize(sampled.tiles),
                    .max_blocks = blocks});
}

}  // namespace

Result<CheckResult> check_attention(kernels::Device& device, const SampleLayer& layer,
                                    const HostIndex& index, int64_t window) {
  const auto& shape = layer.shape();
  const int64_t dense_from = kernels::first_dense_position(shape.num_tokens);
  const auto exact = [](double x) { return x; };
  const auto rounded = [&](float x) { return rounded_to(shape.dtype, x); };
  CheckResult result{.what = "output"};
  std::vector<std::pair<double, std::string>> errors;
  for (const int32_t head : std::set{0, shape.num_query_heads - 1}) {
    MR_ASSIGN_OR_RETURN(const auto host, read_head(device, layer, head, /*with_v=*/true));
    for (const size_t number : sampled_tiles(layer.tiles().size())) {
      const RowTile& tile = layer.tiles()[number];
      kernels::TileCoverage coverage;
      kernels::tile_coverage(index.view().head(head), tile, static_cast<int64_t>(number),
                             tile.position >= dense_from, coverage);
      for (const int64_t r : std::set<int64_t>{0, tile.num_rows - 1}) {
        auto keys = keys_of(coverage, tile.position + r);
        if (window > 0) keys = keys_of_window(window, tile.position + r);
        const int64_t row = tile.local_row + r;
        MR_ASSIGN_OR_RETURN(const auto q, read_row(device, layer, layer.q(), row, head));
        MR_ASSIGN_OR_RETURN(const auto out, read_row(device, layer, layer.out(), row, head));
        const auto reference = attend<double>(q, host, keys, layer.scale(), exact);
        const auto naive = attend<float>(q, host, keys, layer.scale(), rounded);
        result.allowed = std::max(result.allowed, 2 * largest_difference(naive, reference));
        const double error = largest_difference(out, reference);
        errors.emplace_back(error, fmt::format("head {} row {}", head, tile.position + r));
      }
    }
  }
  const auto worst = std::ranges::max_element(errors);
  const auto num_wrong =
      std::ranges::count_if(errors, [&](const auto& e) { return e.first > result.allowed; });
  result.error = worst->first;
  result.where = fmt::format("{}, {} of {} rows", worst->second, num_wrong, errors.size());
  return result;
}

Result<CheckResult> check_last_row_sums(kernels::Device& device, const SampleLayer& layer,
                                        int32_t head, const LastRowSumsOutput& output) {
  // Scores of 30 nats in float32 are off by 2e-6; a sum of up to 64 weights is no worse.
  constexpr double kAllowed = 1e-4;
  constexpr int64_t kSamples = 64;
  const auto& shape = layer.shape();
  const auto last = layer.last_rows();
  const auto dim = static_cast<size_t>(shape.head_dim);
  MR_ASSIGN_OR_RETURN(const auto host, read_head(device, layer, head, /*with_v=*/false));
  MR_ASSIGN_OR_RETURN(const auto lse, read_floats(device, output.lse, last.num_rows));
  MR_ASSIGN_OR_RETURN(const auto columns,
                      read_floats(device, output.column_sums, shape.num_tokens));
  MR_ASSIGN_OR_RETURN(const auto diagonals,
                      read_floats(device, output.diagonal_sums, shape.num_tokens));
  std::vector<std::vector<float>> q;
  for (int64_t r = 0; r < last.num_rows; ++r) {
    MR_ASSIGN_OR_RETURN(auto row,
                        read_row(device, layer, layer.q(), last.first_position + r, head));
    q.push_back(std::move(row));
  }
  const auto score = [&](int64_t r, int64_t key) {
    double dot = 0;
    for (size_t d = 0; d < dim; ++d) {
      dot += double{q[static_cast<size_t>(r)][d]} * host.k[static_cast<size_t>(key) * dim + d];
    }
    return dot * layer.scale();
  };
  const auto weight = [&](int64_t r, int64_t key) {
    if (key < 0 || key > last.first_position + r) return 0.0;
    return std::exp(score(r, key) - lse[static_cast<size_t>(r)]);
  };

  double error = 0;
  for (const int64_t r : std::set<int64_t>{0, last.num_rows - 1}) {
    double sum = 0;
    for (int64_t key = 0; key <= last.first_position + r; ++key) sum += weight(r, key);
    error = std::max(error, std::abs(std::log(sum)));
  }
  const double largest = std::max(*std::ranges::max_element(columns), 1.0F);
  for (int64_t i = 0; i < kSamples; ++i) {
    // Half of the sampled entries are near either end of the lists, where sinks and the local band
    // are.
    const auto any = static_cast<int64_t>(model::mixed_bits(3, static_cast<uint64_t>(i)) %
                                          static_cast<uint64_t>(shape.num_tokens));
    const int64_t place = i % 2 == 0 ? std::min(i, shape.num_tokens - 1) : any;
    double column = 0, diagonal = 0;
    for (int64_t r = 0; r < last.num_rows; ++r) {
      column += weight(r, place);
      diagonal += weight(r, last.first_position + r - place);
    }
    const auto at = static_cast<size_t>(place);
    error = std::max({error, std::abs(columns[at] - column) / largest,
                      std::abs(diagonals[at] - diagonal) / largest});
  }
  return CheckResult{.what = "probe", .error = error, .allowed = kAllowed};
}

Result<CheckResult> check_vertical_slash(kernels::Device& device, const SampleLayer& layer,
                                         int32_t head, kernels::VerticalSlashBudget budget,
                                         const LastRowSumsOutput& output, const HostIndex& index) {
  const int64_t num_tokens = layer.shape().num_tokens;
  MR_ASSIGN_OR_RETURN(const auto columns, read_floats(device, output.column_sums, num_tokens));
  MR_ASSIGN_OR_RETURN(const auto diagonals, read_floats(device, output.diagonal_sums, num_tokens));
  auto shape = index.view().shape;
  shape.num_heads = 1;
  shape.num_tiles = shape.max_blocks = 0;
  const HostIndex expected(shape);
  const std::array heads{0};
  kernels::ref::build_vertical_slash({.column_sums = columns.data(),
                                      .diagonal_sums = diagonals.data(),
                                      .num_tokens = num_tokens,
                                      .heads = heads,
                                      .budgets = {&budget, 1},
                                      .index = expected.view()});
  const auto wanted = expected.view().head(0), actual = index.view().head(head);
  const auto differences = [](const auto* a, int32_t a_count, const auto* b, int32_t b_count) {
    int64_t count = std::abs(a_count - b_count);
    for (int32_t i = 0; i < std::min(a_count, b_count); ++i) count += a[i] == b[i] ? 0 : 1;
    return count;
  };
  const int64_t different =
      differences(wanted.bands, wanted.num_bands, actual.bands, actual.num_bands) +
      differences(wanted.columns, wanted.num_columns, actual.columns, actual.num_columns);
  return CheckResult{.what = "lists", .error = static_cast<double>(different), .allowed = 0};
}

Result<CheckResult> check_block_sparse(kernels::Device& device, const SampleLayer& layer,
                                       int32_t head, int32_t top_k, const HostIndex& index) {
  MR_ASSIGN_OR_RETURN(const auto sampled, sample_head(device, layer, head));
  const HostIndex expected = room_for_blocks(sampled);
  const std::array heads{0};
  kernels::ref::build_block_sparse({.q = sampled.q.data(),
                                    .num_query_heads = 1,
                                    .kv = sampled.kv(layer.shape()),
                                    .tiles = sampled.tiles,
                                    .heads = heads,
                                    .top_k = {&top_k, 1},
                                    .index = expected.view()});
  return compare_blocks("blocks", index, head, expected, sampled);
}

Result<CheckResult> check_adaptive(kernels::Device& device, const SampleLayer& layer, int32_t head,
                                   const AdaptiveSetting& setting, const HostIndex& index) {
  MR_ASSIGN_OR_RETURN(const auto sampled, sample_head(device, layer, head));
  const HostIndex expected = room_for_blocks(sampled);
  const std::array heads{0};
  kernels::ref::build_adaptive({.q = sampled.q.data(),
                                .num_query_heads = 1,
                                .scale = layer.scale(),
                                .kv = sampled.kv(layer.shape()),
                                .tiles = sampled.tiles,
                                .heads = heads,
                                .rules = {&setting.rule, 1},
                                .sampled_rows = setting.sampled_rows,
                                .index = expected.view()});
  return compare_blocks("blocks", index, head, expected, sampled);
}

}  // namespace millrace::bench
