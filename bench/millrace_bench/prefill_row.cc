#include "bench/millrace_bench/prefill_row.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <filesystem>

namespace millrace::bench {

namespace json = boost::json;
using worker::Phase;

namespace {

// What a layer's phases are about.
struct Shares {
  double products_s, attention_s, index_s, copies_s;
};

Shares shares_of(const worker::PhaseTimes& phases) {
  return {.products_s = phases[Phase::kQkv] + phases[Phase::kMlp] + phases[Phase::kLogits],
          .attention_s = phases[Phase::kAttention],
          .index_s = phases[Phase::kEstimate],
          .copies_s = phases[Phase::kExchange] + phases[Phase::kStore] + phases[Phase::kEmbed]};
}

// Plans from files go by the file's name.
std::string short_name(const std::string& plan) {
  return plan.find('/') == std::string::npos ? plan : std::filesystem::path(plan).stem().string();
}

json::array to_array(const std::vector<double>& values) {
  return json::array(values.begin(), values.end());
}

constexpr auto kLine = "{:>9} {:<26.26}{:>8}{:>8}{:>9}{:>9}{:>9}{:>8}{:>8}{:>9}{:>8}{:>8}{:>8}\n";

std::string seconds_text(double value) {
  return fmt::format("{:.3f}", value);
}

}  // namespace

PrefillWork work_of(const PrefillRow& row, const model::ModelConfig& config) {
  const double hidden = config.hidden_size, tokens = static_cast<double>(row.num_tokens);
  const double query_width = config.num_query_heads * config.head_dim;
  const double kv_width = config.num_kv_heads * config.head_dim;
  const double weights = hidden * (2 * query_width + 2 * kv_width) + 3 * hidden * config.ffn_size;
  const double pairs = row.result.density * tokens * (tokens + 1) / 2 * config.num_query_heads;
  return {.linear = 2 * tokens * weights * config.num_layers,
          .attention = 4 * pairs * config.head_dim * config.num_layers};
}

double floor_s(const PrefillWork& work, double roof_tflops, int num_ranks) {
  if (roof_tflops == 0) return 0;
  return 1e-12 * (work.linear + work.attention) / roof_tflops / num_ranks;
}

json::object to_json(const PrefillRow& row, const PrefillContext& context) {
  const auto work = work_of(row, *context.config);
  const double floor = floor_s(work, context.roof_tflops, context.num_ranks);
  const auto shares = shares_of(row.result.phases);
  json::object phases;
  for (size_t i = 0; i < worker::kPhaseNames.size(); ++i) {
    const double elapsed_s = row.result.phases.seconds()[i];
    if (elapsed_s > 0) phases[worker::kPhaseNames[i]] = elapsed_s;
  }
  json::object object{{"tokens", row.num_tokens},
                      {"plan", row.plan},
                      {"total_s", row.median_s()},
                      {"totals_s", to_array(row.totals_s)},
                      {"tokens_per_s", static_cast<double>(row.num_tokens) / row.median_s()},
                      {"density", row.result.density},
                      {"recall", row.result.recall},
                      {"first_token", row.result.first_token},
                      {"repeatable", row.repeatable},
                      {"index_bytes", row.result.index_bytes},
                      {"phases_s", std::move(phases)},
                      {"products_share", shares.products_s / row.median_s()},
                      {"attention_share", shares.attention_s / row.median_s()},
                      {"index_share", shares.index_s / row.median_s()},
                      {"copies_share", shares.copies_s / row.median_s()},
                      {"linear_flops", work.linear},
                      {"attention_flops", work.attention},
                      {"layer_s", to_array(row.layer_s)},
                      {"layer_density", to_array(row.layer_density)}};
  if (floor > 0) {
    object["floor_s"] = floor;
    object["times_floor"] = row.median_s() / floor;
  }
  if (context.dense_s > 0) object["speedup_over_dense"] = context.dense_s / row.median_s();
  return object;
}

std::string prefill_header() {
  return fmt::format(kLine, "tokens", "plan", "total", "floor", "x floor", "x dense", "products",
                     "index", "attend", "copies", "density", "recall", "token");
}

std::string prefill_line(const PrefillRow& row, const PrefillContext& context) {
  const double floor =
      floor_s(work_of(row, *context.config), context.roof_tflops, context.num_ranks);
  const auto shares = shares_of(row.result.phases);
  return fmt::format(
      kLine, row.num_tokens, short_name(row.plan), seconds_text(row.median_s()),
      floor > 0 ? seconds_text(floor) : "",
      floor > 0 ? fmt::format("{:.2f}", row.median_s() / floor) : "",
      context.dense_s > 0 ? fmt::format("{:.2f}", context.dense_s / row.median_s()) : "",
      seconds_text(shares.products_s), seconds_text(shares.index_s),
      seconds_text(shares.attention_s), seconds_text(shares.copies_s),
      fmt::format("{:.4f}", row.result.density), fmt::format("{:.4f}", row.result.recall),
      fmt::format("{}{}", row.result.first_token, row.repeatable ? "" : "?"));
}

}  // namespace millrace::bench
