// SPDX-License-Identifier: Apache-2.0
// One line of `millrace-bench prefill`: a prompt through all layers under one head plan.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "bench/millrace_bench/prefill/baseline.h"
#include "bench/millrace_bench/prefill/cost_model.h"
#include "bench/millrace_bench/prefill/group_traffic.h"
#include "bench/millrace_bench/prefill/machine_rates.h"
#include "engine/engine.h"
#include "worker/staging/store_sink.h"

namespace millrace::bench {

struct PrefillRow {
  int64_t num_tokens = 0;
  std::string plan;
  std::vector<double> totals_s;  // of all counted runs, ascending
  engine::PrefillResult result;  // of the median run; phases are the slowest rank's
  std::vector<double> layer_s;   // of that run, on rank 0
  std::vector<double> layer_density;
  std::vector<double> layer_imbalance;
  RankTraffic traffic;         // of that run, as the mean over ranks
  worker::StoredBytes stored;  // of that run, by all ranks; zero without a store
  bool repeatable = true;      // all runs gave the same first token, density and recall

  double median_s() const { return totals_s[totals_s.size() / 2]; }
};

// What a row is compared with: the machine's rates, the dense run of the same length, and the
// baseline's row.
struct PrefillContext {
  const model::ModelConfig* config = nullptr;
  engine::GridShape grid;
  int64_t element_bytes = 2;
  MachineRates rates;
  double dense_s = 0;                       // 0: not run
  const Baseline::Row* baseline = nullptr;  // null: none
};

PrefillCase case_of(const PrefillRow& row, const PrefillContext& context);
// Attention is at its rate in the baseline, which ran the same plan; without one, at the rate of
// the dense or the sparse kernel alone.
CostRates cost_rates(const PrefillRow& row, const PrefillContext& context);

boost::json::object to_json(const PrefillRow& row, const PrefillContext& context);
std::string prefill_header();
std::string prefill_line(const PrefillRow& row, const PrefillContext& context);

}  // namespace millrace::bench
