#include "worker/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace millrace::worker {

namespace {

// Fixed size, so that one small collective does it; a longer message is cut.
struct Vote {
  int32_t code = 0;  // 0: ok
  std::array<char, 508> message = {};
};

}  // namespace

Result<void> agree(comm::Communicator& world, const Result<void>& own, Deadline deadline) {
  Vote vote;
  if (!own.ok()) {
    vote.code = static_cast<int32_t>(own.error().code);
    const auto& text = own.error().message;
    std::copy_n(text.data(), std::min(text.size(), vote.message.size() - 1), vote.message.data());
  }
  std::vector<Vote> votes(static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(votes.size(), int64_t{sizeof(Vote)});
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(&vote, 1)),
                                      std::as_writable_bytes(std::span(votes)), counts, deadline));
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (votes[rank].code == 0) continue;
    const auto code = static_cast<Errc>(votes[rank].code);
    if (votes.size() == 1) return Error(code, votes[rank].message.data());
    return error(code, "rank {}: {}", rank, votes[rank].message.data());
  }
  return {};
}

}  // namespace millrace::worker
