// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/between_layers.h"

#include <fmt/ranges.h>

#include "common/units.h"

namespace millrace::worker {

// A prompt that is short as a whole has memory of its own, unless a suspended one has taken that.
// Where most of a prompt is cached, a layer's K and V still cover all of it, so all prompts must fit
// into the ranks' memory for prompts.
Result<void> check_between_layers(const BetweenLayers& prompt) {
  const auto& p = prompt;
  const bool is_alone = p.others.interrupted == 0 && p.others.suspended.empty();
  const bool is_short = p.num_tokens <= p.most_new_tokens;
  if (is_alone || (is_short && p.others.suspended.empty())) return {};
  if (p.others.interrupted > 0 && p.num_tokens - p.cached_tokens > p.most_new_tokens) {
    return error(Errc::kExhausted,
                 "{} of {} tokens are cached here; between the layers of another prompt at most {} "
                 "are computed",
                 p.cached_tokens, p.num_tokens, p.most_new_tokens);
  }
  std::vector<int64_t> others = p.others.suspended;
  if (p.others.interrupted > 0) others.push_back(p.others.interrupted);
  int64_t other_bytes = 0;
  for (const int64_t num_tokens : others) other_bytes += p.prompt_bytes(num_tokens);
  const int64_t own_bytes = p.prompt_bytes(p.num_tokens);
  const int64_t memory_bytes = p.memory_bytes + (is_short ? p.prompt_bytes(p.most_new_tokens) : 0);
  if (own_bytes + other_bytes <= memory_bytes) return {};
  return error(Errc::kExhausted,
               "no memory beside {} of {} tokens, which {} {}: {} tokens take {}, of {}",
               others.size() == 1 ? "a prompt" : "prompts", fmt::join(others, ", "),
               others.size() == 1 ? "takes" : "take", format_bytes(other_bytes), p.num_tokens,
               format_bytes(own_bytes), format_bytes(memory_bytes));
}

}  // namespace millrace::worker
