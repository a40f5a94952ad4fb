// SPDX-License-Identifier: Apache-2.0
// Decides which lines of a job's input are run, and under which id each. Rank 0 only.
#pragma once

#include <set>
#include <string>

#include "common/result.h"
#include "engine/runtime/prompt.h"
#include "worker/batch/batch_options.h"
#include "worker/batch/batch_prompt.h"
#include "worker/batch/batch_text.h"
#include "worker/batch/input_lines.h"

namespace millrace::worker {

class BatchAdmission {
 public:
  // All outlive it.
  BatchAdmission(const engine::PromptLimits& limits, const BatchOptions& options, BatchText& text)
      : limits_(limits), options_(options), text_(text) {}

  // The line's id, or "line-N" where it has none. kInvalidArgument where an earlier line already
  // has this id: the id then names that line's result.
  Result<std::string> claim_id(const InputLine& line);
  // What the line asks for, as token ids, if it can be run.
  Result<BatchPrompt> admit(const InputLine& line) const;

 private:
  const engine::PromptLimits& limits_;
  const BatchOptions& options_;
  BatchText& text_;
  std::set<std::string> claimed_;
};

// "line-7"
std::string line_id(const InputLine& line);

}  // namespace millrace::worker
