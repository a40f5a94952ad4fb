// SPDX-License-Identifier: Apache-2.0
#include "bench/quality/column_mass.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/quality/exact_masses.h"
#include "common/units.h"

namespace millrace::bench {

using kernels::kPageTokens;

ColumnMass::ColumnMass(int32_t num_layers, int32_t num_kv_heads, int64_t num_tokens,
                       const kernels::cpu::Context& context)
    : context_(context),
      scores_{.num_layers = num_layers,
              .num_kv_heads = num_kv_heads,
              .num_pages = ceil_div(num_tokens, kPageTokens)} {
  scores_.values.resize(static_cast<size_t>(num_layers * num_kv_heads * scores_.num_pages));
}

void ColumnMass::add_head(const engine::BuiltIndex& layer, int32_t query_head,
                          std::vector<double>& mass, std::vector<int64_t>& num_rows) const {
  ExactMasses masses({.q = layer.queries.q,
                      .num_query_heads = layer.queries.num_query_heads,
                      .head = query_head,
                      .scale = layer.queries.scale,
                      .kv = layer.kv},
                     context_);
  for (const auto& tile : layer.tiles) {
    masses.compute(tile, kRows);
    for (int64_t row = 0; row < masses.num_rows(); ++row) {
      const auto of_row = masses.log_masses(row);
      const double largest = *std::ranges::max_element(of_row);
      double sum = 0;
      for (const double log_mass : of_row) sum += std::exp(log_mass - largest);
      for (size_t page = 0; page < of_row.size(); ++page) {
        mass[page] += std::exp(of_row[page] - largest) / sum;
        ++num_rows[page];
      }
    }
  }
}

void ColumnMass::add(const engine::BuiltIndex& layer) {
  const auto num_pages = static_cast<size_t>(scores_.num_pages);
  const int32_t group = layer.queries.num_query_heads / scores_.num_kv_heads;
  for (int32_t head = 0; head < scores_.num_kv_heads; ++head) {
    std::vector<double> mass(num_pages);
    std::vector<int64_t> num_rows(num_pages);
    for (int32_t i = 0; i < group; ++i) add_head(layer, head * group + i, mass, num_rows);
    double sum = 0;
    for (size_t page = 0; page < num_pages; ++page) {
      mass[page] /= static_cast<double>(std::max<int64_t>(num_rows[page], 1));
      sum += mass[page];
    }
    const auto first = static_cast<size_t>(layer.layer * scores_.num_kv_heads + head) * num_pages;
    for (size_t page = 0; page < num_pages; ++page) {
      scores_.values[first + page] = static_cast<float>(mass[page] / sum);
    }
  }
}

}  // namespace millrace::bench
