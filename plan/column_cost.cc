// SPDX-License-Identifier: Apache-2.0
#include "plan/column_cost.h"

#include <algorithm>

namespace millrace::plan {

// In multiply-adds of a row.
double column_cost(const model::ModelConfig& config, int64_t num_tokens, double density) {
  const double hidden = config.hidden_size;
  const double query_width = double{1} * config.num_query_heads * config.head_dim;
  const double kv_width = double{1} * config.num_kv_heads * config.head_dim;
  double products = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const int32_t ffn = config.has_experts(layer) ? config.active_ffn_size() : config.ffn_size;
    products += hidden * (2 * query_width + 2 * kv_width + 3.0 * ffn);
  }
  // Over all layers, scores and values: two for each channel of each head and key.
  const double keys = std::clamp(density, 0.0, 1.0) * static_cast<double>(num_tokens) / 2;
  const double attention = config.num_layers * keys * 2 * query_width;
  return 1 + attention / products;
}

}  // namespace millrace::plan
