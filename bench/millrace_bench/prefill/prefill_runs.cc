// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/prefill_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <utility>

#include "bench/millrace_bench/prefill/prefill_command.h"
#include "bench/millrace_bench/prefill/rank_lines.h"
#include "engine/ranks/agreement.h"
#include "model/synthetic/synthetic_model.h"
#include "plan/plan_for_length.h"

namespace millrace::bench {

namespace json = boost::json;

namespace {

// Enough for a layer of the longest prompt on the slowest device.
constexpr auto kLayerTimeout = std::chrono::minutes(30);

bool same(const engine::PrefillResult& a, const engine::PrefillResult& b) {
  return a.first_token == b.first_token && a.density == b.density && a.recall.bins == b.recall.bins;
}

}  // namespace

struct PrefillRuns::TimedRun {
  double total_s = 0;
  engine::PrefillResult result;
  std::vector<double> layer_s, layer_density, layer_imbalance;
  RankTraffic traffic;
  worker::StoredBytes stored;
};

Result<void> PrefillRuns::all() {
  MR_RETURN_IF_ERROR(load_baseline());
  MR_RETURN_IF_ERROR(make_store());
  MR_RETURN_IF_ERROR(measure_machine());
  if (root()) fmt::print("{}", prefill_header());
  for (const int64_t tokens : command_->tokens) MR_RETURN_IF_ERROR(run_length(tokens));
  return {};
}

// Every rank reads the file, so that all fail if one cannot read it.
Result<void> PrefillRuns::load_baseline() {
  if (command_->baseline_path.empty()) return {};
  MR_ASSIGN_OR_RETURN(baseline_, Baseline::load(command_->baseline_path));
  return {};
}

Result<void> PrefillRuns::make_store() {
  if (command_->host_bytes == 0) return {};
  auto made = PageStore::create(*runtime_, command_->host_bytes);
  MR_RETURN_IF_ERROR(
      engine::all_agree(runtime_->grid().world(), made.status(), Deadline::after(kLayerTimeout)));
  store_ = *std::move(made);
  return {};
}

// Measures all ranks at once, since they compute at once; the first rank's figures count.
Result<void> PrefillRuns::measure_machine() {
  MR_ASSIGN_OR_RETURN(rates_, measure_rates(*runtime_, command_->product_rows));
  if (root()) {
    fmt::print(
        "products at {:.4g} TFLOP/s, the roof; attention dense {:.4g}, sparse {:.4g}; memory "
        "{:.4g} GB/s\n",
        rates_.product_tflops, rates_.dense_tflops, rates_.sparse_tflops,
        rates_.memory_gbytes_per_s);
  }
  return {};
}

Result<std::vector<plan::HeadPlan>> PrefillRuns::plans_for(int64_t num_tokens) const {
  std::vector<plan::HeadPlan> plans;
  for (const auto& spec : command_->plans) {
    MR_ASSIGN_OR_RETURN(auto plan, plan::make_head_plan(spec, runtime_->weights().config,
                                                        num_tokens, runtime_->crossover_tokens()));
    plans.push_back(
        plan::plan_for_length(std::move(plan), num_tokens, runtime_->device().info().sparse_cost));
  }
  return plans;
}

// Runs of the plans alternate, so that a drifting clock affects all plans.
Result<void> PrefillRuns::run_length(int64_t num_tokens) {
  const auto prompt =
      model::synthetic_prompt(runtime_->weights().config, num_tokens, command_->seed);
  MR_RETURN_IF_ERROR(engine::check_prompt(prompt, runtime_->limits()));
  MR_ASSIGN_OR_RETURN(const auto plans, plans_for(num_tokens));
  std::vector<std::vector<TimedRun>> runs(plans.size());
  for (int i = 0; i < command_->num_warm_ups + command_->num_repeats; ++i) {
    for (size_t p = 0; p < plans.size(); ++p) {
      MR_ASSIGN_OR_RETURN(auto run, run_once(prompt, plans[p]));
      runs[p].push_back(std::move(run));
    }
  }
  for (size_t p = 0; p < plans.size(); ++p) {
    take(row_of(num_tokens, command_->plans[p], std::move(runs[p])));
  }
  return {};
}

Result<PrefillRuns::TimedRun> PrefillRuns::run_once(const std::vector<int32_t>& prompt,
                                                    const plan::HeadPlan& plan) {
  TimedRun run;
  auto& engine = runtime_->engine();
  const RankTraffic before = traffic_so_far(engine.groups());
  const Stopwatch watch;
  double passed_s = 0;
  const auto at_boundary = [&](const engine::LayerReport& report) -> Result<void> {
    run.layer_s.push_back(watch.elapsed_s() - passed_s);
    run.layer_density.push_back(report.density);
    run.layer_imbalance.push_back(report.imbalance);
    passed_s = watch.elapsed_s();
    return {};
  };
  const engine::PrefillTask task{.token_ids = prompt, .plan = &plan, .at_boundary = at_boundary};
  if (store_ == nullptr) {
    MR_ASSIGN_OR_RETURN(run.result, engine.prefill(task, kLayerTimeout));
    run.total_s = watch.elapsed_s();
  } else {
    MR_ASSIGN_OR_RETURN(auto stored, store_->prefill(task, kLayerTimeout));
    run.result = std::move(stored.result);
    run.total_s = stored.total_s;
    run.stored = stored.bytes;
  }
  MR_ASSIGN_OR_RETURN(run.traffic,
                      mean_over(runtime_->grid().world(), traffic_so_far(engine.groups()) - before,
                                Deadline::after(kLayerTimeout)));
  return run;
}

// The row of all runs. Only `repeatable` takes in those that warm up.
PrefillRow PrefillRuns::row_of(int64_t num_tokens, const std::string& spec,
                               std::vector<TimedRun> runs) const {
  PrefillRow row{.num_tokens = num_tokens, .plan = spec};
  for (const auto& run : runs) {
    row.repeatable = row.repeatable && same(run.result, runs.front().result);
  }
  runs.erase(runs.begin(), runs.begin() + command_->num_warm_ups);
  std::ranges::sort(runs, {}, &TimedRun::total_s);
  for (const auto& run : runs) row.totals_s.push_back(run.total_s);
  auto& middle = runs[runs.size() / 2];
  row.result = std::move(middle.result);
  row.layer_s = std::move(middle.layer_s);
  row.layer_density = std::move(middle.layer_density);
  row.layer_imbalance = std::move(middle.layer_imbalance);
  row.traffic = std::move(middle.traffic);
  row.stored = middle.stored;
  return row;
}

void PrefillRuns::take(PrefillRow row) {
  rows_.push_back(std::move(row));
  if (!root()) return;
  const auto context = context_of(rows_.back());
  fmt::print("{}", prefill_line(rows_.back(), context));
  if (runtime_->grid().world().size() > 1) fmt::print("{}", rank_lines(rows_.back(), context));
  fmt::print("{}", stored_line(rows_.back()));
  std::fflush(stdout);
}

PrefillContext PrefillRuns::context_of(const PrefillRow& row) const {
  const auto is_dense = [&](const PrefillRow& other) {
    return other.num_tokens == row.num_tokens && other.plan == "dense";
  };
  const auto dense = std::ranges::find_if(rows_, is_dense);
  return {.config = &runtime_->weights().config,
          .grid = runtime_->grid().shape(),
          .element_bytes = dtype_bytes(runtime_->weights().compute_dtype),
          .rates = rates_,
          .dense_s = dense == rows_.end() ? 0 : dense->median_s(),
          .baseline = baseline_ ? baseline_->find(row.num_tokens, row.plan) : nullptr};
}

json::object PrefillRuns::json() const {
  json::array rows;
  for (const auto& row : rows_) rows.push_back(to_json(row, context_of(row)));
  const auto& grid = runtime_->grid();
  return {{"model", runtime_->weights().config.name},
          {"ranks", grid.world().size()},
          {"tp", grid.shape().tp},
          {"cp", grid.shape().cp},
          {"transport", runtime_->engine().groups().transport},
          {"roof_tflops", rates_.product_tflops},
          {"rates", to_json(rates_)},
          {"rows", std::move(rows)}};
}

bool PrefillRuns::repeatable() const {
  return std::ranges::all_of(rows_, &PrefillRow::repeatable);
}

}  // namespace millrace::bench
