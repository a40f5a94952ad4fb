// SPDX-License-Identifier: Apache-2.0
// Brings a value of each rank to all of them.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"

namespace millrace::engine {

// Collective: `own` of every rank, in rank order. All ranks run the same program, so values are
// exchanged as bytes.
template <typename Value>
Result<std::vector<Value>> gather_values(comm::Communicator& world, const Value& own,
                                         Deadline deadline) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(all.size(), int64_t{sizeof(Value)});
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(&own, 1)),
                                      std::as_writable_bytes(std::span(all)), counts, deadline));
  return all;
}

}  // namespace millrace::engine
