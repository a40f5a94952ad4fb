// SPDX-License-Identifier: Apache-2.0
// One thread of a client, and its connections: fetches what the queue gives it, checks it, and
// brings it to where it belongs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/result.h"
#include "kvclient/device/device_copier.h"
#include "kvclient/device_pool_reader.h"
#include "kvclient/landing_pages.h"
#include "kvclient/page_pieces.h"
#include "kvclient/place_client.h"
#include "kvclient/pull_queue.h"
#include "kvclient/ranks/page_call.h"
#include "kvclient/same_host_reader.h"

namespace millrace::kvclient {

class PullWorker {
 public:
  // What the client knows of ranks on its host.
  struct SameHost {
    explicit SameHost(std::shared_ptr<DeviceCopier> of)
        : copier(std::move(of)), device_pools(*copier) {}
    const std::shared_ptr<DeviceCopier> copier;
    SameHostRanks ranks;
    DevicePools device_pools;
  };

  // All arguments outlive the worker. `same_host`: null if pages come only over the transport.
  PullWorker(PullQueue& queue, comm::Transport& transport, SameHost* same_host,
             DeviceCopier& copier, int thread, int32_t max_refetches);

  // Runs until the queue is closed.
  void run();

 private:
  struct Connection {
    std::unique_ptr<comm::TransportConnection> to;
    std::string transport_name;
    uint64_t used = 0;  // when, in calls of this thread
  };
  using Work = PullQueue::Work;

  Result<PullOutcome> fetch(const Work& work);
  // Where the job's pages lie in the rank's memory; empty if the rank is on another host.
  Result<PlaceClient::Answer> ask_for_places(const Work& work);
  Result<PullOutcome> fetch_to_host(const Work& work, const PagePieces& pieces);
  Result<PullOutcome> fetch_to_device(const Work& work, const PagePieces& pieces);
  // Fetches by way of the lane's staging memory.
  Result<void> stage(const Work& work, const PlacedRun& placed, const SameHostRanks::Pools* pools,
                     const PagePieces& pieces, DeviceLane& lane, PullOutcome& outcome);
  Result<void> scatter(const PageRun& run, const PagePieces& pieces, DeviceLane& lane);
  Result<DeviceLane*> lane(int32_t device);
  Result<PullOutcome> fetch_scores(const Work& work);
  // Over the transport.
  Result<void> fetch_run(const Work& work, const PageRun& run, const PagePieces& pieces,
                         PullOutcome& outcome);
  Result<void> fetch_in_place(const Work& work, const PageRun& run, const PagePieces& pieces,
                              PullOutcome& outcome);
  Result<void> fetch_and_copy(const Work& work, const PageRun& run, const PagePieces& pieces,
                              PullOutcome& outcome);
  // Fetches the run to `destination`, where page i lies at `place(i)`. Calls `keep(i)` once page i
  // is right, either as it lands or at the end.
  using Place = std::function<comm::Destination(int64_t index)>;
  using Keep = std::function<void(int64_t index)>;
  Result<void> fetch_checked(const Work& work, const PageRun& run, comm::Destination destination,
                             const Place& place, const Keep& keep, PullOutcome& outcome);
  // Fetches page `index` of the run into `page` until it is what its rank wrote.
  Result<void> make_good(const Work& work, const PageRun& run, int64_t index,
                         comm::Destination page, PulledPage& pulled, PullOutcome& outcome);
  Result<std::vector<PulledPage>> call(const Work& work, const PageRun& run,
                                       comm::Destination destination, PullOutcome& outcome);
  // One request and its reply. Connects again if the connection was lost.
  Result<comm::TransportConnection::Reply> exchange(const Work& work, const std::string& request,
                                                    comm::Destination destination,
                                                    PullOutcome& outcome);
  Result<Connection*> connection(const Work& work, bool& is_new);
  void drop_oldest_connection();

  PullQueue& queue_;
  comm::Transport& transport_;
  SameHost* const same_host_;
  DeviceCopier& copier_;
  const int thread_;
  const int32_t max_refetches_;
  std::optional<PlaceClient> place_client_;  // where there is same_host_
  SameHostReader host_reader_;
  DevicePoolReader device_pool_reader_;
  LandingPages landing_;                                  // observes all connections
  std::map<std::string, Connection> connections_;         // by address
  std::map<int32_t, std::unique_ptr<DeviceLane>> lanes_;  // by device
  uint64_t num_calls_ = 0;
  std::vector<std::byte> staging_, sink_;
  std::vector<std::byte> decoded_;  // a page
  Pieces pieces_, page_pieces_;
  std::vector<DevicePiece> device_pieces_;
};

}  // namespace millrace::kvclient
