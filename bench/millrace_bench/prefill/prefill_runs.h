// SPDX-License-Identifier: Apache-2.0
// The runs of `millrace-bench prefill` on one rank of the grid: first the rates of the machine,
// then every length under every plan.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/millrace_bench/prefill/baseline.h"
#include "bench/millrace_bench/prefill/page_store.h"
#include "bench/millrace_bench/prefill/prefill_row.h"
#include "engine/runtime/rank_runtime.h"
#include "plan/head_plan.h"

namespace millrace::bench {

struct PrefillCommand;

class PrefillRuns {
 public:
  // Both must outlive it.
  PrefillRuns(engine::RankRuntime& runtime, const PrefillCommand& command)
      : runtime_(&runtime), command_(&command) {}

  // Collective. The first rank prints each row as it is done.
  Result<void> all();

  boost::json::object json() const;
  // Whether all runs of each case gave the same answers.
  bool repeatable() const;

 private:
  struct TimedRun;

  bool root() const { return runtime_->grid().is_root(); }
  Result<void> load_baseline();
  Result<void> make_store();
  Result<void> measure_machine();
  Result<void> run_length(int64_t num_tokens);
  Result<std::vector<plan::HeadPlan>> plans_for(int64_t num_tokens) const;
  Result<TimedRun> run_once(const std::vector<int32_t>& prompt, const plan::HeadPlan& plan);
  PrefillRow row_of(int64_t num_tokens, const std::string& spec, std::vector<TimedRun> runs) const;
  void take(PrefillRow row);
  PrefillContext context_of(const PrefillRow& row) const;

  engine::RankRuntime* runtime_;
  const PrefillCommand* command_;
  std::unique_ptr<PageStore> store_;  // null: pages are not stored
  MachineRates rates_;
  std::optional<Baseline> baseline_;
  std::vector<PrefillRow> rows_;
};

}  // namespace millrace::bench
