// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_admission.h"

#include <algorithm>
#include <cctype>

namespace millrace::worker {

namespace {

// An id names a directory when KV is saved.
bool is_file_name(const std::string& id) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  return !id.empty() && id.size() <= 200 && id.front() != '.' &&
         std::all_of(id.begin(), id.end(), allowed);
}

}  // namespace

std::string line_id(const InputLine& line) {
  return fmt::format("line-{}", line.number);
}

Result<std::string> BatchAdmission::claim_id(const InputLine& line) {
  std::string id = batch_prompt_id(line.text);
  if (id.empty()) id = line_id(line);
  if (claimed_.insert(id).second) return id;
  return Error(Errc::kInvalidArgument,
               fmt::format("id '{}' is already used by an earlier line of the input", id));
}

Result<BatchPrompt> BatchAdmission::admit(const InputLine& line) const {
  if (line.num_bytes > options_.max_line_bytes) {
    return error(Errc::kTooLarge, "line of {} bytes, limit {}", line.num_bytes,
                 options_.max_line_bytes);
  }
  MR_ASSIGN_OR_RETURN(auto prompt, parse_batch_prompt(line.text));
  if (prompt.text) {
    MR_ASSIGN_OR_RETURN(prompt.token_ids, text_.encode(*prompt.text, prompt.add_special_tokens));
  }
  MR_RETURN_IF_ERROR(engine::check_prompt(prompt.token_ids, limits_));
  if (const auto known = engine::check_token_ids(prompt.probe_target_ids, limits_.vocab_size);
      !known.ok()) {
    return error(known.error().code, "probe_target_ids: {}", known.error().message);
  }
  if (options_.save_kv && !is_file_name(prompt.id)) {
    return error(Errc::kInvalidArgument,
                 "id '{}' cannot name a directory; allowed are letters, digits, '.', '_' and '-'",
                 prompt.id);
  }
  return prompt;
}

}  // namespace millrace::worker
