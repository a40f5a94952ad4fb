// SPDX-License-Identifier: Apache-2.0
#include "worker/peers/peer_pools.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "comm/memfd/memfd_connection.h"
#include "comm/memfd/memfd_server.h"
#include "common/check.h"
#include "engine/ranks/rank_values.h"

namespace millrace::worker {

namespace {

constexpr size_t kTurnBytes = size_t{1} << 30;

using SocketName = std::array<char, 64>;  // empty: the rank has no pools to show

SocketName name_of(const comm::MemfdServer& server) {
  SocketName name = {};
  MR_CHECK(server.name().size() < name.size(), "a socket's name of {} bytes", server.name().size());
  std::ranges::copy(server.name(), name.begin());
  return name;
}

// Serves this rank's pools to every process of this user that knows the socket's name: only the
// group is told it.
Result<std::unique_ptr<comm::MemfdServer>> show(const kvstore::LeasedPages& store) {
  std::vector<int> descriptors;
  for (const SharedMemory* pool : store.shared_pools()) descriptors.push_back(pool->descriptor());
  if (descriptors.empty()) return error(Errc::kUnsupported, "the host pool is private");
  const size_t num_descriptors = descriptors.size();
  return comm::MemfdServer::start(
      std::move(descriptors),
      [num_descriptors](std::string_view) {
        return comm::MemfdServer::Answer{
            .text = "pools", .num_descriptors = num_descriptors, .keep_alive = {}};
      },
      {});
}

Result<std::vector<SharedMemoryView>> map_pools(const SocketName& name, Deadline deadline) {
  if (name.front() == '\0') return error(Errc::kUnsupported, "its host pool is private");
  MR_ASSIGN_OR_RETURN(const auto connection, comm::MemfdConnection::open(name.data(), deadline));
  const auto answer = connection->call("pools", deadline);
  if (!answer.ok()) return answer.error();
  std::vector<SharedMemoryView> views;
  for (const auto& descriptor : connection->take_descriptors()) {
    MR_ASSIGN_OR_RETURN(auto view, SharedMemoryView::map(descriptor));
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace

Result<std::unique_ptr<PeerPools>> PeerPools::connect(comm::Communicator& cp,
                                                      const kvstore::LeasedPages& store,
                                                      kernels::DeviceMemory& device,
                                                      Deadline deadline) {
  std::unique_ptr<PeerPools> peers(new PeerPools());
  const auto server = show(store);
  const SocketName own = server.ok() ? name_of(**server) : SocketName();
  MR_ASSIGN_OR_RETURN(const auto names, engine::gather_values(cp, own, deadline));
  Result<void> mapped = server.status();
  for (int rank = 0; rank < cp.size(); ++rank) {
    auto& pools = peers->pools_.emplace_back();
    if (rank == cp.rank() || !mapped.ok()) continue;
    auto views = map_pools(names[static_cast<size_t>(rank)], deadline);
    if (views.ok()) {
      pools = std::move(*views);
    } else {
      mapped =
          error(Errc::kUnsupported, "context-parallel rank {}: {}", rank, views.error().message);
    }
  }
  MR_RETURN_IF_ERROR(cp.barrier(deadline));  // all have asked: the server may end
  MR_RETURN_IF_ERROR(mapped);
  if (!device.info().host_memory) {
    peers->locker_.emplace(device, PoolLocker::Options{.busy = true});
    peers->lock_pools();
  }
  return peers;
}

// Pools take turns, since each store uses its slots from the first on.
void PeerPools::lock_pools() {
  std::vector<std::span<const std::byte>> rest;
  for (const auto& pools : pools_) {
    for (const auto& pool : pools) rest.push_back(pool.bytes());
  }
  while (!rest.empty()) {
    for (auto& of_pool : rest) {
      const auto turn = of_pool.first(std::min(kTurnBytes, of_pool.size()));
      locker_->add(turn);
      of_pool = of_pool.subspan(turn.size());
    }
    std::erase_if(rest, [](const auto& of_pool) { return of_pool.empty(); });
  }
}

std::span<const std::byte> PeerPools::bytes(int rank, PoolPlace place, int64_t num_bytes) const {
  const auto& pools = pools_[static_cast<size_t>(rank)];
  if (place.pool == 0 || place.pool > pools.size()) return {};
  const auto pool = pools[place.pool - 1].bytes();
  const auto size = static_cast<size_t>(num_bytes);
  if (size > pool.size() || place.offset > pool.size() - size) return {};
  return pool.subspan(place.offset, size);
}

}  // namespace millrace::worker
