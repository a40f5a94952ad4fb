// A batch job: every line of an input file through the engine, one result line each, in input
// order. One bad prompt never ends the job; a group that broke does.
#pragma once

#include <set>
#include <string>

#include "kernels/api/device.h"
#include "worker/batch/batch_prompt.h"
#include "worker/batch/batch_results.h"
#include "worker/batch/input_lines.h"
#include "worker/batch/kv_directory.h"
#include "worker/batch/retain_sink.h"
#include "worker/engine/engine.h"
#include "worker/runtime/prompt.h"
#include "worker/watch/group_watch.h"

namespace millrace::worker {

struct BatchOptions {
  std::string input_path;
  std::string output_directory;
  std::string head_plan = "auto";
  double min_recall = 0;
  bool resume = false;  // an earlier job's results stay, and what they have is not computed again
  bool save_kv = false;
  int64_t crossover_tokens = 0;
  int64_t max_line_bytes = kMaxBatchLineBytes;
  Duration layer_timeout = std::chrono::minutes(30);
  bool show_progress = false;
};

struct BatchSummary {
  int64_t num_ok = 0;
  int64_t num_failed = 0;
  int64_t num_done_before = 0;  // by the job that this one resumes
  int64_t num_tokens = 0;
  double total_s = 0;
};

class BatchJob {
 public:
  // All arguments outlive the job; limits and options are the same on every rank. `watch`: null
  // where nobody watches.
  BatchJob(Engine& engine, kernels::Device& device, const model::ModelWeights& weights,
           const RankGrid& grid, const PromptLimits& limits, const BatchOptions& options,
           GroupWatch* watch = nullptr)
      : engine_(engine),
        device_(device),
        weights_(weights),
        grid_(grid),
        limits_(limits),
        options_(options),
        watch_(watch) {}

  // Collective. An error ends the job as a whole (input unreadable, results unwritable); what is
  // wrong with one prompt is in its result line. kPeerLost: the group is broken, the process should
  // end. The summary is rank 0's.
  Result<BatchSummary> run();

 private:
  Result<BatchSummary> lead();
  Result<void> follow();
  Result<std::optional<InputLine>> next_line(InputLines& input);
  Result<void> run_line(const InputLine& line, BatchResults& results, BatchSummary& summary);
  Result<BatchPrompt> admit(const InputLine& line);
  Result<BatchResult> lead_prompt(const BatchPrompt& prompt);
  Result<void> meet_after(const Error& failure);
  Result<BatchResult> run_prompt(const BatchPrompt& prompt);
  // What takes the layers of a prompt on this rank.
  struct Sinks;
  Result<Sinks> make_sinks(const BatchPrompt& prompt, int64_t num_rows);
  Result<BatchResult> run_checked(const BatchPrompt& prompt, const model::HeadPlan& plan,
                                  const Partition& partition);
  Result<PrefillResult> prefill(const BatchPrompt& prompt, const model::HeadPlan& plan,
                                Sinks& sinks);
  Result<std::vector<int32_t>> generate(const BatchPrompt& prompt, int32_t first_token,
                                        const RetainSink& retained);
  Result<void> finish_files(const BatchPrompt& prompt, const Partition& partition,
                            const PrefillResult& result, Sinks& sinks);
  Result<void> save_manifest(const BatchPrompt& prompt, const Partition& partition,
                             const PrefillResult& result);
  Duration command_timeout() const;
  Result<void> agree_here(const Result<void>& own);
  void expect(const std::string& step);
  void expect(const std::string& step, Duration allowed);
  KvDirectory kv_directory(const std::string& id) const;

  Engine& engine_;
  kernels::Device& device_;
  const model::ModelWeights& weights_;
  const RankGrid& grid_;
  const PromptLimits& limits_;
  const BatchOptions& options_;
  GroupWatch* watch_;
  std::set<std::string> seen_ids_;
};

}  // namespace millrace::worker
