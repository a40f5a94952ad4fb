// SPDX-License-Identifier: Apache-2.0
// Whether a prompt may run between two layers of another one, decided once its prefix has been
// looked up. The coordinator chooses such prompts by what it believes to be cached; the ranks know
// what is.
#pragma once

#include <cstdint>
#include <functional>

#include "common/result.h"

namespace millrace::worker {

struct BetweenLayers {
  int64_t num_tokens = 0;        // of the prompt that is to run between layers
  int64_t cached_tokens = 0;     // of num_tokens
  int64_t other_tokens = 0;      // of the prompt that waits meanwhile; 0: none does
  bool other_suspended = false;  // it is suspended: it waits however many tokens are computed
  int64_t most_new_tokens = 0;
  // Memory of each rank for all prompts together, and what a prompt of `num_tokens` tokens takes.
  int64_t memory_bytes = 0;
  std::function<int64_t(int64_t num_tokens)> prompt_bytes;
};

// The same on all ranks. kExhausted, with the numbers: the prompt has to wait until the other one
// has ended.
Result<void> check_between_layers(const BetweenLayers& prompt);

}  // namespace millrace::worker
