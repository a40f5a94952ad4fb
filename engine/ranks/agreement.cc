// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace millrace::engine {

namespace {

// Of fixed size, so that one small collective suffices; a longer message is cut.
struct Vote {
  int32_t code = 0;  // 0: ok
  std::array<char, 508> message = {};
};

Vote vote_of(const Result<void>& own) {
  Vote vote;
  if (!own.ok()) {
    vote.code = static_cast<int32_t>(own.error().code);
    const auto& text = own.error().message;
    std::copy_n(text.data(), std::min(text.size(), vote.message.size() - 1), vote.message.data());
  }
  return vote;
}

}  // namespace

Result<void> all_agree(comm::Communicator& world, const Result<void>& own, Deadline deadline) {
  return all_agree_with(world, own, {}, {}, deadline);
}

// A rank sends its vote and its value, one after the other.
Result<void> all_agree_with(comm::Communicator& world, const Result<void>& own,
                            std::span<const std::byte> value, std::span<std::byte> values,
                            Deadline deadline) {
  const auto num_ranks = static_cast<size_t>(world.size());
  const size_t bytes = sizeof(Vote) + value.size();
  const Vote vote = vote_of(own);
  std::vector<std::byte> sent(bytes), received(num_ranks * bytes);
  std::memcpy(sent.data(), &vote, sizeof(Vote));
  std::ranges::copy(value, sent.begin() + sizeof(Vote));
  const std::vector<int64_t> counts(num_ranks, static_cast<int64_t>(bytes));
  MR_RETURN_IF_ERROR(world.all_gather(sent, received, counts, deadline));
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    const auto from = std::span(received).subspan(rank * bytes, bytes);
    Vote other;
    std::memcpy(&other, from.data(), sizeof(Vote));
    const auto code = static_cast<Errc>(other.code);
    if (other.code != 0 && num_ranks == 1) return Error(code, other.message.data());
    if (other.code != 0) return error(code, "rank {}: {}", rank, other.message.data());
    std::ranges::copy(from.subspan(sizeof(Vote)), values.begin() + rank * value.size());
  }
  return {};
}

}  // namespace millrace::engine
