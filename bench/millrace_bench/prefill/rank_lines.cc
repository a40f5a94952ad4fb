// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/rank_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace millrace::bench {

namespace {

using Column = std::vector<double>;  // seconds of a phase, by rank

struct RankRow {
  const char* name;
  double (*of)(const Column&);
};

constexpr RankRow kRankRows[] = {
    {"least", [](const Column& s) { return *std::ranges::min_element(s); }},
    {"mean",
     [](const Column& s) {
       return std::accumulate(s.begin(), s.end(), 0.0) / static_cast<double>(s.size());
     }},
    {"most", [](const Column& s) { return *std::ranges::max_element(s); }}};

// The phases that took time, with their columns.
std::vector<std::pair<std::string_view, Column>> columns_of(const engine::PrefillResult& result) {
  std::vector<std::pair<std::string_view, Column>> columns;
  for (size_t i = 0; i < engine::kPhaseNames.size(); ++i) {
    if (result.phases.seconds()[i] == 0) continue;
    auto& column = columns.emplace_back(engine::kPhaseNames[i], Column()).second;
    for (const auto& rank : result.rank_phases) column.push_back(rank.seconds()[i]);
  }
  return columns;
}

std::string phase_table(const engine::PrefillResult& result) {
  const auto columns = columns_of(result);
  std::string table = fmt::format("  {:<14}", "over ranks");
  for (const auto& [name, seconds] : columns) table += fmt::format("{:>10}", name);
  for (const auto& row : kRankRows) {
    table += fmt::format("\n  {:<14}", row.name);
    for (const auto& [name, seconds] : columns) table += fmt::format("{:>10.3f}", row.of(seconds));
  }
  return table + "\n";
}

std::string prediction_line(const PrefillRow& row, const PrefillContext& context) {
  const auto rates = cost_rates(row, context);
  const auto predicted = predicted_time(case_of(row, context), rates);
  return fmt::format(
      "  predicted: linear {:.3f}, attention {:.3f} at {:.3g} TFLOP/s, memory {:.3f}, exchange "
      "{:.3f}; measured {:.2f} times their sum\n",
      predicted.linear_s, predicted.attention_s, rates.attention_tflops, predicted.memory_s,
      predicted.exchange_s, row.median_s() / predicted.total_s());
}

std::string balance_line(const engine::Imbalance& imbalance) {
  return fmt::format("  attention, maximum over mean of the ranks: {:.3f}; {:.3f} in layer {}\n",
                     imbalance.mean, imbalance.worst, imbalance.worst_layer);
}

std::string efficiency_line(const PrefillRow& row, const PrefillContext& context) {
  if (context.baseline == nullptr) return {};
  const auto& baseline = *context.baseline;
  const int num_ranks = context.grid.tp * context.grid.cp;
  return fmt::format("  parallel efficiency {:.3f} of {} ranks against {:.3f} s on {}\n",
                     baseline.efficiency(row.median_s(), num_ranks), num_ranks, baseline.total_s,
                     baseline.num_ranks);
}

}  // namespace

std::string rank_lines(const PrefillRow& row, const PrefillContext& context) {
  return phase_table(row.result) + traffic_lines("tp", row.traffic.tp, context.rates.tp) +
         traffic_lines("cp", row.traffic.cp, context.rates.cp) +
         balance_line(row.result.imbalance) + prediction_line(row, context) +
         efficiency_line(row, context);
}

std::string stored_line(const PrefillRow& row) {
  const auto& [total, while_computing] = row.stored;
  if (total == 0) return {};
  return fmt::format(
      "  stored in host memory: {:.3g} GB, {:.2f} of it while later layers were computed\n",
      1e-9 * static_cast<double>(total),
      static_cast<double>(while_computing) / static_cast<double>(total));
}

}  // namespace millrace::bench
