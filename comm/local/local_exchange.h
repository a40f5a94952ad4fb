// SPDX-License-Identifier: Apache-2.0
// The one primitive under a local group's collectives: every rank hands in bytes, every rank gets
// all of them. Contributions are copies, so a rank that gives up may free its buffers at once while
// slower ranks still read what it sent.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

// Which ranks of the group that was created first have failed, and how. Shared by that group and
// all groups split from it: they break together.
struct LocalHub {
  explicit LocalHub(int num_ranks) : failures(static_cast<size_t>(num_ranks)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<Error>> failures;  // by rank of the first group
};

class LocalExchange {
 public:
  struct Contribution {
    std::string_view call;  // "barrier", ...: all ranks must make the same one
    std::vector<std::byte> bytes;
    std::shared_ptr<LocalExchange> child;  // only for split: made by the leader for its colour
  };
  using Round = std::vector<Contribution>;  // by rank

  // members[r]: rank r's place in the hub.
  LocalExchange(std::shared_ptr<LocalHub> hub, std::vector<int> members);

  const std::shared_ptr<LocalHub>& hub() const { return hub_; }
  int member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(members_.size()); }

  Result<std::shared_ptr<const Round>> exchange(int rank, Contribution mine, Deadline deadline);

  // If the rank has a call waiting, it returns kCancelled, and the other ranks' calls return
  // kPeerLost.
  void abort(int rank) noexcept;
  // The rank will make no more calls on this exchange.
  void leave(int rank) noexcept;

 private:
  std::optional<Error>& failure(int rank) { return hub_->failures[members_[rank]]; }
  Error fail(int rank, Error first_error);
  // A rank that can no longer take part, or -1.
  int lost_rank();
  Result<void> join(int rank, Contribution mine);

  const std::shared_ptr<LocalHub> hub_;
  const std::vector<int> members_;

  // Guarded by hub_->mutex.
  std::shared_ptr<Round> round_;
  int num_joined_ = 0;
  uint64_t num_rounds_done_ = 0;
  std::vector<bool> left_;
};

}  // namespace millrace::comm
