// SPDX-License-Identifier: Apache-2.0
// Whether a prompt may run between two layers of another one, or beside suspended ones, decided once
// its prefix has been looked up. The coordinator chooses such prompts by what it believes to be cached; the ranks know
// what is.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/result.h"

namespace millrace::worker {

// Tokens of the prompts that have their memory while another one runs.
struct OtherPrompts {
  int64_t interrupted = 0;         // between two layers of it the other runs; 0: there is none
  std::vector<int64_t> suspended;  // these wait however many tokens are computed
};

struct BetweenLayers {
  int64_t num_tokens = 0;     // of the prompt that is to run
  int64_t cached_tokens = 0;  // of num_tokens
  OtherPrompts others;
  // Of a prompt between two layers of another. Each rank has memory for one such prompt besides
  // `memory_bytes`.
  int64_t most_new_tokens = 0;
  // Memory of each rank for all prompts together, and what a prompt of `num_tokens` tokens takes.
  int64_t memory_bytes = 0;
  std::function<int64_t(int64_t num_tokens)> prompt_bytes;
};

// The same on all ranks. kExhausted, with the numbers: the prompt has to wait until others have
// ended.
Result<void> check_between_layers(const BetweenLayers& prompt);

}  // namespace millrace::worker
