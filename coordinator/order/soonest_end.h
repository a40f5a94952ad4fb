// The soonest that a prompt can end, by what is known of times: whether a deadline can be met. It errs on
// the early side: the prompt and all that comes before it take half of what the Forecast says
// (Forecast::least), and what is not sure counts as nothing. Pure.
//
// - A group may have cached as much of the prompt as it has said, less than 512 tokens more, and all that
//   the prompt shares with those that run or wait now and leave their pages.
// - Before it are the prompts that groups run, but for one that may preempt them, and those that
//   wait and have their turn before it even at its deadline (TurnOrder::surely_before). Of these, none
//   counts that may run between two layers or beside others, that no group has room for, or that will miss its own
//   deadline.
// - They go, in their turns, to the group that is free first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "coordinator/order/turn_order.h"

namespace millrace::coordinator {

// Of the group that ends it first.
struct SoonestEnd {
  Duration all() const { return wait + prefill; }

  Duration wait{};
  Duration prefill{};
  int64_t cached_tokens = 0;  // at most, of the prompt
  int64_t num_ahead = 0;      // prompts that run or wait, and count
};

// Of a request that comes now; nothing where too little is known of one of the groups that may take it.
std::optional<SoonestEnd> soonest_end(const Request& request, std::span<const Group* const> groups,
                                      const TurnOrder::Queue& waiting, const TurnOrder& turns,
                                      TimePoint now);

// The same of one whose turn it is: without what is before it.
std::optional<SoonestEnd> least_prefill(const Request& request,
                                        std::span<const Group* const> groups,
                                        const TurnOrder::Queue& waiting, const TurnOrder& turns);

// For messages: ", of which 2048 are cached at most,", or nothing.
std::string cached_text(int64_t cached_tokens);

}  // namespace millrace::coordinator
