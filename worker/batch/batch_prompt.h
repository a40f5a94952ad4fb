// SPDX-License-Identifier: Apache-2.0
// One line of a batch job's input, and one of its output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "engine/head_recall.h"
#include "engine/phase_times.h"
#include "model/vocabulary.h"

namespace millrace::worker {

// A line of 4M token ids is about 30 MB of text.
inline constexpr int64_t kMaxBatchLineBytes = 256ll << 20;
inline constexpr int32_t kMaxBatchNewTokens = 4096;

struct BatchPrompt {
  std::string id;
  std::optional<std::string> text;  // replaces token ids; the tokenizer makes them of it
  bool add_special_tokens = true;   // to the text
  std::vector<int32_t> token_ids;
  int32_t max_tokens = 1;
  bool ignore_eos = false;
  std::vector<int64_t> probe_positions;   // whose logits are asked for; ascending
  std::vector<int32_t> probe_target_ids;  // none, or one a position; not negative
};

// {"id": "...", "prompt_token_ids": [...], "max_tokens": 1, "ignore_eos": false, "probe_positions":
// [...], "probe_target_ids": [...]}; all but the first two are optional. "text" may replace the
// token ids, as may "prompt" if it is a string, with "add_special_tokens". kInvalidArgument names
// the field. Unknown fields are ignored, so that a job's input may carry what its reader needs
// (expected answers).
Result<BatchPrompt> parse_batch_prompt(std::string_view line);
// The id of a line that could not be parsed otherwise; empty when it has none.
std::string batch_prompt_id(std::string_view line);

// The pages of a prompt's cache that a budget left out.
struct DroppedPages {
  int64_t pages = 0;  // of one layer and kv head each
  int64_t bytes = 0;
  double mass = 0;  // BudgetChoice::dropped_mass
};

struct BatchResult {
  int64_t num_tokens = 0;
  std::vector<int32_t> generated_token_ids;
  std::optional<std::string> generated_text;  // of a prompt that was text
  std::string_view finish_reason = "length";
  std::vector<model::TokenScore> top_tokens;
  std::vector<int32_t> probe_token_ids;
  std::vector<double> probe_logprobs;
  double density = 0;
  double recall = 0;      // mean share of their attention mass that measured rows attended to
  double recall_p01 = 0;  // the share that all but one in a hundred of these rows reach
  engine::HeadRecalls recall_by_head;   // where the job's options ask for it
  int64_t dense_for_length = 0;         // heads that ran densely because the prompt is short
  std::optional<DroppedPages> dropped;  // where there is a budget
  double total_s = 0;
  engine::PhaseTimes phases;
};

std::string batch_result_line(const std::string& id, const BatchResult& result);
std::string batch_error_line(const std::string& id, const Error& error);

// What a result line says of its prompt.
struct EarlierResult {
  std::string id;  // empty if the line is none
  bool ok = false;
};
EarlierResult read_result_line(std::string_view line);

}  // namespace millrace::worker
