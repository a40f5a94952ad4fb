// SPDX-License-Identifier: Apache-2.0
// When a prompt that arrives now should end, for a client that could also do without. Unlike
// soonest_end() it says what is likely and not what is certain, and where nothing is known it
// guesses. Pure.
//
// - Each group ends what it runs. Then those that wait and have their turn before the prompt, as
//   turns are when the first group is free, go one by one to the group that is free first; then the
//   prompt goes to the one that ends it first.
// - A prompt that may run between two layers of what a group runs waits for one layer there.
// - Prompts that run side by side count as if they ran one after the other, and room is not
//   considered.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "coordinator/order/turn_order.h"

namespace millrace::coordinator {

struct ExpectedEnd {
  Duration all() const { return wait + prefill; }

  Duration wait{};
  Duration prefill{};
  int64_t cached_tokens = 0;  // of the prompt, that the group has said to have cached
  // Whether prompts like this one were seen on groups like this one.
  bool is_learnt = false;
};

// nullopt if no group takes the request. It may be in `waiting`, else it comes last.
std::optional<ExpectedEnd> expected_end(const std::shared_ptr<Request>& request,
                                        std::span<const Group* const> groups,
                                        const TurnOrder::Queue& waiting, const TurnOrder& turns,
                                        TimePoint now);

// The rest of a prefill that waits, runs or is done, for a request that joins it.
std::optional<ExpectedEnd> expected_rest(const std::shared_ptr<Request>& prefill,
                                         std::span<const Group* const> groups,
                                         const TurnOrder::Queue& waiting, const TurnOrder& turns,
                                         TimePoint now);

}  // namespace millrace::coordinator
