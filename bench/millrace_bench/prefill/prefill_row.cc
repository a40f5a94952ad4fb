// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/prefill_row.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>

namespace millrace::bench {

namespace json = boost::json;
using engine::Phase;

namespace {

// Seconds of a layer's phases, summed by what they do.
struct Shares {
  double products_s, attention_s, index_s, copies_s;
};

Shares shares_of(const engine::PhaseTimes& phases) {
  return {.products_s = phases[Phase::kQkv] + phases[Phase::kMlp] + phases[Phase::kLogits],
          .attention_s = phases[Phase::kAttention],
          .index_s = phases[Phase::kEstimate],
          .copies_s = phases[Phase::kExchange] + phases[Phase::kStore] + phases[Phase::kEmbed]};
}

json::array to_array(const std::vector<double>& values) {
  return json::array(values.begin(), values.end());
}

json::object to_json(const PredictedTime& predicted) {
  return {{"total_s", predicted.total_s()},
          {"linear_s", predicted.linear_s},
          {"attention_s", predicted.attention_s},
          {"memory_s", predicted.memory_s},
          {"exchange_s", predicted.exchange_s}};
}

json::object to_json(const engine::Imbalance& imbalance) {
  return {
      {"mean", imbalance.mean}, {"worst", imbalance.worst}, {"worst_layer", imbalance.worst_layer}};
}

// The slowest rank's seconds in each phase that took time on any rank.
json::object slowest_phases(const engine::PrefillResult& result) {
  json::object phases;
  for (size_t i = 0; i < engine::kPhaseNames.size(); ++i) {
    const double elapsed_s = result.phases.seconds()[i];
    if (elapsed_s > 0) phases[engine::kPhaseNames[i]] = elapsed_s;
  }
  return phases;
}

json::object phases_by_rank(const engine::PrefillResult& result) {
  json::object phases;
  for (size_t i = 0; i < engine::kPhaseNames.size(); ++i) {
    if (result.phases.seconds()[i] == 0) continue;
    json::array ranks;
    for (const auto& rank : result.rank_phases) ranks.push_back(rank.seconds()[i]);
    phases[engine::kPhaseNames[i]] = std::move(ranks);
  }
  return phases;
}

json::object share_object(const PrefillRow& row) {
  const auto shares = shares_of(row.result.phases);
  return {{"products_share", shares.products_s / row.median_s()},
          {"attention_share", shares.attention_s / row.median_s()},
          {"index_share", shares.index_s / row.median_s()},
          {"copies_share", shares.copies_s / row.median_s()}};
}

constexpr auto kLine =
    "{:>9} {:<26.26}{:>8}{:>10}{:>8}{:>9}{:>9}{:>9}{:>8}{:>8}{:>9}{:>8}{:>8}{:>8}\n";

std::string seconds_text(double value) {
  return value > 0 ? fmt::format("{:.3f}", value) : "";
}

std::string ratio_text(double value, double of) {
  return value > 0 && of > 0 ? fmt::format("{:.2f}", value / of) : "";
}

double floor_of(const PrefillRow& row, const PrefillContext& context) {
  const auto prefill = case_of(row, context);
  return floor_s(work_of(prefill), context.rates.product_tflops, prefill.num_ranks());
}

PredictedTime prediction_of(const PrefillRow& row, const PrefillContext& context) {
  return predicted_time(case_of(row, context), cost_rates(row, context));
}

double efficiency_of(const PrefillRow& row, const PrefillContext& context) {
  return context.baseline->efficiency(row.median_s(), context.grid.tp * context.grid.cp);
}

}  // namespace

PrefillCase case_of(const PrefillRow& row, const PrefillContext& context) {
  return {.config = context.config,
          .grid = context.grid,
          .num_tokens = row.num_tokens,
          .element_bytes = context.element_bytes,
          .density = row.result.density,
          .imbalance = row.result.imbalance.mean};
}

CostRates cost_rates(const PrefillRow& row, const PrefillContext& context) {
  const auto& rates = context.rates;
  const bool known = context.baseline != nullptr && context.baseline->attention_tflops > 0;
  const double kernel_tflops = row.result.density == 1 ? rates.dense_tflops : rates.sparse_tflops;
  return {.product_tflops = rates.product_tflops,
          .attention_tflops = known ? context.baseline->attention_tflops : kernel_tflops,
          .memory_gbytes_per_s = rates.memory_gbytes_per_s,
          .all_gather_gbytes_per_s = rates.cp.all_gather_gbytes_per_s,
          .all_reduce_gbytes_per_s = rates.tp.all_reduce_gbytes_per_s};
}

json::object to_json(const PrefillRow& row, const PrefillContext& context) {
  const auto work = work_of(case_of(row, context));
  json::object object{
      {"tokens", row.num_tokens},
      {"plan", row.plan},
      {"total_s", row.median_s()},
      {"totals_s", to_array(row.totals_s)},
      {"tokens_per_s", static_cast<double>(row.num_tokens) / row.median_s()},
      {"density", row.result.density},
      {"recall", row.result.recall.mean()},
      {"recall_p01", row.result.recall.first_percentile()},
      {"first_token", row.result.first_token},
      {"repeatable", row.repeatable},
      {"index_bytes", row.result.index_bytes},
      {"imbalance", to_json(row.result.imbalance)},
      {"phases_s", slowest_phases(row.result)},
      {"rank_phases_s", phases_by_rank(row.result)},
      {"collectives", {{"tp", to_json(row.traffic.tp)}, {"cp", to_json(row.traffic.cp)}}},
      {"linear_flops", work.linear},
      {"attention_flops", work.attention},
      {"layer_s", to_array(row.layer_s)},
      {"layer_density", to_array(row.layer_density)},
      {"layer_imbalance", to_array(row.layer_imbalance)}};
  for (auto& share : share_object(row)) object[share.key()] = share.value();
  if (const double floor = floor_of(row, context); floor > 0) {
    object["floor_s"] = floor;
    object["times_floor"] = row.median_s() / floor;
    object["predicted"] = to_json(prediction_of(row, context));
    object["predicted_attention_tflops"] = cost_rates(row, context).attention_tflops;
  }
  if (row.stored.total > 0) {
    object["stored"] = {{"bytes", row.stored.total},
                        {"while_computing", row.stored.while_computing}};
  }
  if (context.dense_s > 0) object["speedup_over_dense"] = context.dense_s / row.median_s();
  if (context.baseline != nullptr) {
    object["baseline_s"] = context.baseline->total_s;
    object["baseline_ranks"] = context.baseline->num_ranks;
    object["efficiency"] = efficiency_of(row, context);
  }
  return object;
}

std::string prefill_header() {
  return fmt::format(kLine, "tokens", "plan", "total", "predicted", "floor", "x floor", "x dense",
                     "products", "index", "attend", "copies", "density", "recall", "token");
}

std::string prefill_line(const PrefillRow& row, const PrefillContext& context) {
  const double floor = floor_of(row, context);
  const auto shares = shares_of(row.result.phases);
  return fmt::format(kLine, row.num_tokens, plan_label(row.plan), seconds_text(row.median_s()),
                     seconds_text(prediction_of(row, context).total_s()), seconds_text(floor),
                     ratio_text(row.median_s(), floor), ratio_text(context.dense_s, row.median_s()),
                     seconds_text(shares.products_s), seconds_text(shares.index_s),
                     seconds_text(shares.attention_s), seconds_text(shares.copies_s),
                     fmt::format("{:.4f}", row.result.density),
                     fmt::format("{:.4f}", row.result.recall.mean()),
                     fmt::format("{}{}", row.result.first_token, row.repeatable ? "" : "?"));
}

}  // namespace millrace::bench
