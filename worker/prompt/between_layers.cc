// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/between_layers.h"

#include "common/units.h"

namespace millrace::worker {

// A prompt that is short as a whole has memory of its own. Where most of a prompt is cached, a
// layer's K and V still cover all of it, so both prompts must fit into the ranks' memory for
// prompts.
Result<void> check_between_layers(const BetweenLayers& prompt) {
  const auto& p = prompt;
  if (p.other_tokens == 0 || p.num_tokens <= p.most_new_tokens) return {};
  if (!p.other_suspended && p.num_tokens - p.cached_tokens > p.most_new_tokens) {
    return error(Errc::kExhausted,
                 "{} of {} tokens are cached here; between the layers of another prompt at most {} "
                 "are computed",
                 p.cached_tokens, p.num_tokens, p.most_new_tokens);
  }
  const int64_t own_bytes = p.prompt_bytes(p.num_tokens);
  const int64_t other_bytes = p.prompt_bytes(p.other_tokens);
  if (own_bytes + other_bytes <= p.memory_bytes) return {};
  return error(Errc::kExhausted,
               "no memory beside a prompt of {} tokens, which takes {}: {} tokens take {}, of {}",
               p.other_tokens, format_bytes(other_bytes), p.num_tokens, format_bytes(own_bytes),
               format_bytes(p.memory_bytes));
}

}  // namespace millrace::worker
