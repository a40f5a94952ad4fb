// SPDX-License-Identifier: Apache-2.0
// The connections of the ranks' watches, from every rank to rank 0.
#pragma once

#include <array>
#include <list>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::worker {

// Owns and closes its descriptor. Calls on it do not block.
class WatchSocket {
 public:
  WatchSocket() = default;
  explicit WatchSocket(int fd) : fd_(fd) {}
  WatchSocket(WatchSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  WatchSocket& operator=(WatchSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~WatchSocket();

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Numeric address of rank 0: only rank 0 asks a resolver, which knows no deadline. Of fixed size,
// so that it can be broadcast.
struct WatchEndpoint {
  std::array<char, 64> host = {};
  std::array<char, 8> port = {};  // empty: rank 0 could not listen
};

// A host name is resolved by the system's resolver, whose own time limit then applies.
Result<WatchSocket> listen_for_ranks(const std::string& host, WatchEndpoint& endpoint);

// `epoch`: distinguishes ranks from strangers. kDeadlineExceeded when the host does not answer.
Result<WatchSocket> connect_to_rank_0(const WatchEndpoint& endpoint, const std::string& epoch,
                                      int rank, Deadline deadline);

struct GreetedRank {
  int rank = -1;
  WatchSocket socket;
};

// Rank 0's end while the ranks connect. One thread; the listener outlives it.
class RankArrivals {
 public:
  RankArrivals(const WatchSocket& listener, int num_ranks, std::string epoch)
      : listener_(listener), num_ranks_(num_ranks), epoch_(std::move(epoch)) {}

  // The next rank that connects. Strangers are turned away, and those that say nothing hold up
  // nobody. kDeadlineExceeded.
  Result<GreetedRank> next(Deadline deadline);

 private:
  struct Stranger {
    WatchSocket socket;
    std::string received;
  };

  // Waits for a connection, which it accepts, or for words. False once the deadline has passed.
  bool wait(Deadline deadline);

  const WatchSocket& listener_;
  const int num_ranks_;
  const std::string epoch_;
  std::list<Stranger> strangers_;  // in the order of arrival
};

}  // namespace millrace::worker
