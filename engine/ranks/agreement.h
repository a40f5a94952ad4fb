// SPDX-License-Identifier: Apache-2.0
// Ranks agree on whether to go on. A failure on one rank (a full disk, a refused reservation) must
// stop all of them at the same point, or the next collective waits for a rank that has left.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"

namespace millrace::engine {

// Collective. Ok on every rank when `own` is ok on every rank; otherwise, on every rank, the error
// of the lowest failing rank with "rank R: " in front.
Result<void> all_agree(comm::Communicator& world, const Result<void>& own, Deadline deadline);

// The same; the single exchange also collects `value` of every rank into `values`, in rank order.
// `values` is meaningless on error. All values are of one size.
Result<void> all_agree_with(comm::Communicator& world, const Result<void>& own,
                            std::span<const std::byte> value, std::span<std::byte> values,
                            Deadline deadline);

// The values of all ranks, in rank order, when all have one. All ranks run the same program, so
// values are exchanged as bytes.
template <typename Value>
Result<std::vector<Value>> all_agree_on_values(comm::Communicator& world, const Result<Value>& own,
                                               Deadline deadline) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const Value value = own.ok() ? *own : Value{};
  std::vector<Value> all(static_cast<size_t>(world.size()));
  MR_RETURN_IF_ERROR(all_agree_with(world, own.status(), std::as_bytes(std::span(&value, 1)),
                                    std::as_writable_bytes(std::span(all)), deadline));
  return all;
}

}  // namespace millrace::engine
