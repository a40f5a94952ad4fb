// SPDX-License-Identifier: Apache-2.0
// One prompt of a batch job on all ranks: prefill, KV files, generation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plan/head_plan.h"
#include "worker/batch/batch_options.h"
#include "worker/batch/batch_prompt.h"
#include "worker/batch/kv_directory.h"
#include "worker/batch/kv_files.h"
#include "worker/sinks/budget_sink.h"
#include "worker/sinks/fan_out_sink.h"
#include "worker/sinks/retain_sink.h"
#include "worker/sync/rank_sync.h"

namespace millrace::worker {

class BatchPromptRun {
 public:
  // All outlive the run.
  BatchPromptRun(const BatchResources& resources, const BatchOptions& options, RankSync& sync,
                 const BatchPrompt& prompt);

  // Collective, called once: a result on all ranks or an error on all. An error leaves no files.
  Result<BatchResult> run();

 private:
  // The sinks that take the layers on this rank.
  struct Sinks {
    std::unique_ptr<KvFileSink> file;      // where KV is saved, on one of the ranks that have it
    std::unique_ptr<RetainSink> retained;  // where more tokens are generated
    FanOutSink all;
    std::unique_ptr<BudgetSink> budget;  // where not all pages are kept: passes layers on to `all`

    engine::KvSink* first();
  };

  Result<plan::HeadPlan> plan() const;
  Result<BatchResult> run_planned(const plan::HeadPlan& plan);
  Result<Sinks> make_sinks() const;
  Result<engine::PrefillResult> prefill(const plan::HeadPlan& plan, Sinks& sinks);
  Result<void> finish_files(const engine::PrefillResult& result, Sinks& sinks);
  Result<DroppedPages> drop_pages(Sinks& sinks);
  Result<void> save_manifest(const engine::PrefillResult& result) const;
  Result<std::vector<int32_t>> generate(int32_t first_token, const RetainSink& retained);
  void expect(const std::string& step);

  const BatchResources resources_;
  const BatchOptions& options_;
  RankSync& sync_;
  const BatchPrompt& prompt_;
  const engine::Partition partition_;
  const KvDirectory directory_;
};

}  // namespace millrace::worker
