// SPDX-License-Identifier: Apache-2.0
// A batch job: runs every line of an input file through the engine and writes one result line each,
// in input order. A bad prompt never ends the job; a broken group does.
#pragma once

#include <cstdint>
#include <optional>

#include "worker/batch/batch_admission.h"
#include "worker/batch/batch_options.h"
#include "worker/batch/batch_prompt.h"
#include "worker/batch/batch_record.h"
#include "worker/batch/batch_results.h"
#include "worker/batch/batch_text.h"
#include "worker/batch/input_lines.h"
#include "worker/sync/rank_sync.h"

namespace millrace::worker {

struct BatchSummary {
  int64_t num_ok = 0;
  int64_t num_failed = 0;
  int64_t num_done_before = 0;  // by the job that this one resumes
  int64_t num_tokens = 0;
  double total_s = 0;
};

class BatchJob {
 public:
  // `options` outlive the job.
  BatchJob(const BatchResources& resources, const BatchOptions& options);

  // Collective. An error ends the job as a whole (input unreadable, results unwritable); an error
  // of one prompt is in its result line. kPeerLost: the group is broken, and the process should
  // end. The summary is valid on rank 0.
  Result<BatchSummary> run();

 private:
  Result<BatchSummary> lead();
  Result<void> follow();
  Result<std::optional<InputLine>> next_line(InputLines& input);
  Result<void> run_line(const InputLine& line, BatchResults& results, BatchRecord& record,
                        BatchSummary& summary);
  Result<BatchResult> lead_prompt(const BatchPrompt& prompt);
  Result<BatchResult> run_prompt(const BatchPrompt& prompt);
  Result<void> meet_after(const Error& failure);

  const BatchResources resources_;
  const BatchOptions& options_;
  RankSync sync_;
  BatchText text_;
  BatchAdmission admission_;
};

}  // namespace millrace::worker
