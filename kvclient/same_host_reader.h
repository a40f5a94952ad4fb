// Copies pages out of the memory of ranks on this host, for one thread of a client. A page is copied
// to a buffer that stays in the cache, checked there, and written from there to where it belongs:
// what a rank does to its memory meanwhile cannot harm. Staging memory is such a buffer itself.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/memfd/memfd_connection.h"
#include "kvclient/page_call.h"
#include "kvclient/page_places.h"
#include "kvclient/pull_queue.h"
#include "kvclient/same_host_ranks.h"

namespace millrace::kvclient {

class SameHostReader {
 public:
  // Both outlive the reader. `thread`: its number in the queue.
  SameHostReader(PullQueue& queue, SameHostRanks& ranks, int thread)
      : queue_(queue), ranks_(ranks), thread_(thread) {}

  // Fetches what it can of the job's pages and returns the others, which the transport brings: all
  // where the rank is not on this host. An error is the rank's answer, or kCancelled.
  Result<std::vector<PageRun>> read(const PullQueue::Work& work, const PagePlaces& places,
                                    PullOutcome& outcome);

 private:
  struct Rank {
    std::unique_ptr<comm::MemfdConnection> connection;
    std::shared_ptr<const SameHostRanks::Pools> pools;  // once an answer brought them
  };

  // Null where there is no asking.
  Rank* rank_of(const PullQueue::Work& work, const std::string& socket);
  // Nothing where the connection failed.
  Result<std::optional<std::vector<PlacedPage>>> ask(const PullQueue::Work& work,
                                                     const std::string& socket, Rank& rank);
  Result<void> map_pools(const std::string& socket, Rank& rank);
  static bool copy(const PlacedPage& page, const SameHostRanks::Pools& pools,
                   std::span<std::byte> to);

  PullQueue& queue_;
  SameHostRanks& ranks_;
  const int thread_;
  std::map<std::string, Rank> connected_;  // by socket
  std::vector<std::byte> page_, decoded_;
  Pieces pieces_;
};

}  // namespace millrace::kvclient
