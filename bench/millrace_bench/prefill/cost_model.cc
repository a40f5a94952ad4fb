// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/cost_model.h"

#include <algorithm>

namespace millrace::bench {

namespace {

// Elements of a row in each part of the whole model.
struct Widths {
  explicit Widths(const model::ModelConfig& config)
      : hidden(config.hidden_size),
        query(double{1} * config.num_query_heads * config.head_dim),
        kv(double{1} * config.num_kv_heads * config.head_dim),
        ffn(config.active_ffn_size()) {}
  double hidden, query, kv, ffn;
};

// Of the residual stream and of the sums over tensor-parallel ranks.
constexpr double kFloat32Bytes = 4;
// One for attention's output and one for the MLP's.
constexpr double kSumsALayer = 2;

double rows_of_a_rank(const PrefillCase& prefill) {
  return static_cast<double>(prefill.num_tokens) / prefill.grid.cp;
}

// Elements of K in a row on one rank, at least those of one head.
double kv_of_a_rank(const PrefillCase& prefill) {
  const auto& config = *prefill.config;
  return std::max(Widths(config).kv / prefill.grid.tp, double{1} * config.head_dim);
}

// Norms, RoPE, SiLU, and the residual stream to which products are added.
double memory_bytes_a_row(const PrefillCase& prefill) {
  const Widths w(*prefill.config);
  const auto element = static_cast<double>(prefill.element_bytes);
  const double tp = prefill.grid.tp;
  const double norms = kSumsALayer * w.hidden * (kFloat32Bytes + element);
  const double rope = 2 * element * (w.query / tp + 2 * kv_of_a_rank(prefill));
  const double silu = 3 * element * w.ffn / tp;
  // With tp 1 the product adds to the stream: one read and one write. With tensor parallelism the
  // product is written and then added.
  const double passes = prefill.grid.tp == 1 ? 2 : 4;
  return norms + rope + silu + kSumsALayer * passes * w.hidden * kFloat32Bytes;
}

double at(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

}  // namespace

// The last layer only needs K and V of all rows; its few rows with logits take no time.
PrefillWork work_of(const PrefillCase& prefill) {
  const auto& config = *prefill.config;
  const Widths w(config);
  const auto tokens = static_cast<double>(prefill.num_tokens);
  const double weights = w.hidden * (2 * w.query + 2 * w.kv) + 3 * w.hidden * w.ffn;
  const double last_weights = w.hidden * 2 * w.kv;
  const double pairs = prefill.density * tokens * (tokens + 1) / 2 * config.num_query_heads;
  return {.linear = 2 * tokens * (weights * (config.num_layers - 1) + last_weights),
          .attention = 4 * pairs * config.head_dim * (config.num_layers - 1)};
}

double floor_s(const PrefillWork& work, double roof_tflops, int num_ranks) {
  return at(1e-12 * (work.linear + work.attention) / num_ranks, roof_tflops);
}

PrefillTraffic traffic_of(const PrefillCase& prefill) {
  const auto& config = *prefill.config;
  const double tp = prefill.grid.tp, cp = prefill.grid.cp;
  const double rows = rows_of_a_rank(prefill);
  // K and V of all tokens, as attention reads them.
  const double slab = 2 * static_cast<double>(prefill.num_tokens) * kv_of_a_rank(prefill) *
                      static_cast<double>(prefill.element_bytes);
  // Rows gathered by rank are reordered by position.
  const double ordering = prefill.grid.cp == 1 ? 0 : 2 * slab;
  return {.memory = config.num_layers * (rows * memory_bytes_a_row(prefill) + ordering),
          .all_gather = config.num_layers * slab * (cp - 1) / cp,
          .all_reduce = config.num_layers * kSumsALayer * rows * config.hidden_size *
                        kFloat32Bytes * 2 * (tp - 1) / tp};
}

PredictedTime predicted_time(const PrefillCase& prefill, const CostRates& rates) {
  const auto work = work_of(prefill);
  const auto traffic = traffic_of(prefill);
  const double share = 1.0 / prefill.num_ranks();
  return {
      .linear_s = at(1e-12 * work.linear * share, rates.product_tflops),
      .attention_s = at(1e-12 * work.attention * share * prefill.imbalance, rates.attention_tflops),
      .memory_s = at(1e-9 * traffic.memory, rates.memory_gbytes_per_s),
      .exchange_s = at(1e-9 * traffic.all_gather, rates.all_gather_gbytes_per_s) +
                    at(1e-9 * traffic.all_reduce, rates.all_reduce_gbytes_per_s)};
}

}  // namespace millrace::bench
