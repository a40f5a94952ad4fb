// A batch job: every line of an input file through the engine, one result line each, in input
// order. One bad prompt never ends the job.
#pragma once

#include <set>
#include <string>

#include "kernels/api/device.h"
#include "worker/batch_prompt.h"
#include "worker/engine.h"
#include "worker/prompt.h"

namespace millrace::worker {

struct BatchOptions {
  std::string input_path;
  std::string output_directory;
  std::string head_plan = "auto";
  bool save_kv = false;
  int64_t crossover_tokens = 0;
  Duration layer_timeout = std::chrono::minutes(30);
  bool show_progress = false;
};

struct BatchSummary {
  int64_t num_ok = 0;
  int64_t num_failed = 0;
  int64_t num_tokens = 0;
  double total_s = 0;
};

class BatchJob {
 public:
  // All arguments outlive the job; the same on every rank.
  BatchJob(Engine& engine, kernels::Device& device, const model::ModelWeights& weights,
           const RankGrid& grid, const PromptLimits& limits, const BatchOptions& options)
      : engine_(engine),
        device_(device),
        weights_(weights),
        grid_(grid),
        limits_(limits),
        options_(options) {}

  // Collective. An error ends the job as a whole (input unreadable, results unwritable, a rank
  // lost); what is wrong with one prompt is in its result line. The summary is rank 0's.
  Result<BatchSummary> run();

 private:
  Result<BatchSummary> lead();
  Result<void> follow();
  Result<BatchPrompt> admit(const std::string& line);
  Result<BatchResult> run_prompt(const BatchPrompt& prompt);
  Result<BatchResult> run_checked(const BatchPrompt& prompt, const model::HeadPlan& plan,
                                  const Partition& partition);
  Result<void> save_manifest(const BatchPrompt& prompt, const Partition& partition,
                             const PrefillResult& result);
  std::string kv_directory(const std::string& id) const;

  Engine& engine_;
  kernels::Device& device_;
  const model::ModelWeights& weights_;
  const RankGrid& grid_;
  const PromptLimits& limits_;
  const BatchOptions& options_;
  std::set<std::string> seen_ids_;
};

}  // namespace millrace::worker
