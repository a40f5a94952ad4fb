// SPDX-License-Identifier: Apache-2.0
// The soonest that a prompt can end, as far as times are known: whether a deadline can be met. It
// errs on the early side: the prompt and all that come before it take half of what the Forecast
// says (Forecast::least), and what is uncertain counts as nothing. Pure.
//
// - A group may have cached what it has said of the prompt, fewer than 512 tokens more, and all
//   that the prompt shares with prompts that run or wait now and leave their pages.
// - Before the prompt come those that groups run, unless it may preempt them, and those that wait
//   and have their turn before it even at its deadline (TurnOrder::surely_before). Not counted are
//   prompts that may run between two layers or side by side with others, that no group has room
//   for, or that will miss their own deadlines.
// - They go, in their turns, to the group that ends them first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "coordinator/order/turn_order.h"

namespace millrace::coordinator {

// On the group that ends the prompt first.
struct SoonestEnd {
  Duration all() const { return wait + prefill; }

  Duration wait{};
  Duration prefill{};
  int64_t cached_tokens = 0;  // at most, of the prompt
  int64_t num_ahead = 0;      // prompts that run or wait, and count
};

// For a request that arrives now; nullopt where too little is known of one of the groups that may
// take it.
std::optional<SoonestEnd> soonest_end(const Request& request, std::span<const Group* const> groups,
                                      const TurnOrder::Queue& waiting, const TurnOrder& turns,
                                      TimePoint now);

// The same for a request whose turn it is: without what comes before it.
std::optional<SoonestEnd> least_prefill(const Request& request,
                                        std::span<const Group* const> groups,
                                        const TurnOrder::Queue& waiting, const TurnOrder& turns);

// For messages: ", of which 2048 are cached at most,", or nothing.
std::string cached_text(int64_t cached_tokens);

}  // namespace millrace::coordinator
