// SPDX-License-Identifier: Apache-2.0
// Prompts for the needle fixture (tests/models/README.md): records in the first third, answered
// queries spread over the rest, and one unanswered query at the end. The same spec gives the same
// prompt everywhere. The Python generator draws other prompts of the same kind.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::testing {

// Token ids of the fixture's vocabulary.
inline constexpr int32_t kNeedleBos = 0;
inline constexpr int32_t kNeedleRecord = 3;  // "\n#" KEY d d d d ";"
inline constexpr int32_t kNeedleRecordEnd = 4;
inline constexpr int32_t kNeedleQuery = 6;  // "\n?" KEY, then the record's four digits
inline constexpr int32_t kNeedleDigit0 = 7;
inline constexpr int32_t kNeedleWord0 = 17;  // keys and filler
inline constexpr int32_t kNeedleVocabSize = 2048;

// Which records the queries ask for, including the query at the end.
enum class NeedleMode {
  kOneRecord,   // always the same: what a row needs persists over rows
  kAllRecords,  // each in turn: what a row needs changes from query to query
};

struct NeedlePromptSpec {
  int64_t tokens = 4096;
  int records = 8;
  int queries = 8;  // in the middle, each followed by its answer
  NeedleMode mode = NeedleMode::kAllRecords;
  uint64_t seed = 1;
};

struct NeedlePrompt {
  std::vector<int32_t> token_ids;
  // Positions of the KEY tokens of the middle queries, in order: the rows that must predict a first
  // digit.
  std::vector<int64_t> probe_positions;
  std::vector<int32_t> expected_probe_tokens;
  std::vector<int32_t> answer_tokens;  // the four digits that answer the query at the end
};

// Throws std::invalid_argument if the records or queries do not fit into the prompt.
NeedlePrompt make_needle_prompt(const NeedlePromptSpec& spec);

}  // namespace millrace::testing
