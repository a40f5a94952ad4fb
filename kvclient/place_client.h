// SPDX-License-Identifier: Apache-2.0
// Asks ranks on this host where pages lie in their memory. Used by one thread of a client.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "comm/memfd/memfd_connection.h"
#include "kvclient/pull_queue.h"
#include "kvclient/ranks/device_pools.h"
#include "kvclient/ranks/placed_run.h"
#include "kvclient/ranks/same_host_ranks.h"

namespace millrace::kvclient {

class PlaceClient {
 public:
  struct Answer {
    PlacedRun places;  // of the job's run; no pages: the rank cannot be asked
    std::shared_ptr<const SameHostRanks::Pools> pools;  // null: none
    std::shared_ptr<const DevicePool> device_pool;  // null: none that the pull's device can reach
  };

  // All arguments outlive the client. `thread`: its number in the queue.
  PlaceClient(PullQueue& queue, SameHostRanks& ranks, DevicePools& device_pools, int thread)
      : queue_(queue), ranks_(ranks), device_pools_(device_pools), thread_(thread) {}

  // The pages that the job asks for stay in place until done() or the next question to the rank. An
  // error is the rank's answer, or kCancelled.
  Result<Answer> ask(const PullQueue::Work& work);
  void done(const PullQueue::Work& work);

 private:
  struct Rank {
    std::unique_ptr<comm::MemfdConnection> connection;
    std::shared_ptr<const SameHostRanks::Pools> pools;  // once an answer brought them
  };

  // Null if the rank cannot be asked.
  Rank* rank_of(const PullQueue::Work& work, const std::string& socket);
  Result<std::string> call(const PullQueue::Work& work, Rank& rank, const std::string& request);
  // Maps the memory that came with the reply, or makes it mappable.
  Result<void> take_memory(const std::string& socket, Rank& rank, int64_t device_pool_bytes);
  void give_up(const PullQueue::Work& work, const std::string& socket, const Error& why);

  PullQueue& queue_;
  SameHostRanks& ranks_;
  DevicePools& device_pools_;
  const int thread_;
  std::map<std::string, Rank> connected_;  // by socket
};

}  // namespace millrace::kvclient
