#include "worker/peers/peer_pools.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <utility>

#include "comm/memfd/memfd_connection.h"
#include "comm/memfd/memfd_server.h"
#include "common/check.h"
#include "common/units.h"
#include "worker/ranks/rank_values.h"

namespace millrace::worker {

namespace {

// While the driver locks a piece, some 1 ms, it launches no kernel of this process. Locking all of
// the peers' pools at the start, in pieces of 64 MiB, held up the first prompt for 39 s (four
// H100s, 160 GiB of pools).
constexpr size_t kPieceBytes = size_t{8} << 20;
// The pause after each piece that is locked while a prompt runs, in times that locking it took: a
// tenth of the time goes into locking.
constexpr int kPauses = 9;
// Pauses until pieces that were not resident are looked at again: the first, and the longest, where
// nothing makes them resident before they are used (Prefault).
constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::minutes(1);

using SocketName = std::array<char, 64>;  // empty: the rank has no pools to show

SocketName name_of(const comm::MemfdServer& server) {
  SocketName name = {};
  MR_CHECK(server.name().size() < name.size(), "a socket's name of {} bytes", server.name().size());
  std::ranges::copy(server.name(), name.begin());
  return name;
}

// Serves this rank's pools to every process of this user that knows the socket's name: only the
// group is told it.
Result<std::unique_ptr<comm::MemfdServer>> show(const kvstore::KvStore& store) {
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

// Locking memory that is not resident would clear it on this thread; its owner clears it with
// several.
bool is_resident(std::span<const std::byte> memory) {
  const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(ceil_div(memory.size(), page_bytes));
  void* const data = const_cast<std::byte*>(memory.data());
  return ::mincore(data, memory.size(), pages.data()) == 0 &&
         std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
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
                                                      const kvstore::KvStore& store,
                                                      kernels::Device& device, Deadline deadline) {
  std::unique_ptr<PeerPools> peers(new PeerPools(device));
  const auto server = show(store);
  const SocketName own = server.ok() ? name_of(**server) : SocketName();
  MR_ASSIGN_OR_RETURN(const auto names, gather_values(cp, own, deadline));
  Result<void> mapped = server.ok() ? Result<void>() : server.error();
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
    peers->thread_ =
        std::jthread([self = peers.get()](const std::stop_token& stop) { self->lock_pools(stop); });
  }
  return peers;
}

std::span<const std::byte> PeerPools::bytes(int rank, PoolPlace place, int64_t num_bytes) const {
  const auto& pools = pools_[static_cast<size_t>(rank)];
  if (place.pool == 0 || place.pool > pools.size()) return {};
  const auto pool = pools[place.pool - 1].bytes();
  const auto size = static_cast<size_t>(num_bytes);
  if (size > pool.size() || place.offset > pool.size() - size) return {};
  return pool.subspan(place.offset, size);
}

void PeerPools::lock_pools(const std::stop_token& stop) {
  std::vector<std::span<const std::byte>> waiting;
  for (const auto& pools : pools_) {
    for (const auto& pool : pools) {
      for (auto rest = pool.bytes(); !rest.empty();) {
        waiting.push_back(rest.first(std::min(kPieceBytes, rest.size())));
        rest = rest.subspan(waiting.back().size());
      }
    }
  }
  // During a pause only a request to stop wakes this thread.
  std::mutex mutex;
  std::condition_variable_any nothing;
  const auto pause = [&](Duration longest) {
    std::unique_lock lock(mutex);
    nothing.wait_for(lock, stop, longest, [] { return false; });
  };
  Duration next_look = kFirstPause;
  while (!waiting.empty() && !stop.stop_requested()) {
    std::vector<std::span<const std::byte>> later;
    for (const auto piece : waiting) {
      while (busy_ && !used_ && !stop.stop_requested()) pause(kFirstPause);
      if (stop.stop_requested()) return;
      if (!is_resident(piece)) {
        later.push_back(piece);
        continue;
      }
      const Stopwatch stopwatch;
      if (!locks_.add(piece)) return;
      locked_bytes_ += std::ssize(piece);
      if (busy_) {
        pause(std::chrono::duration_cast<Duration>(
            std::chrono::duration<double>(kPauses * stopwatch.elapsed_s())));
      }
    }
    next_look =
        later.size() < waiting.size() ? kFirstPause : std::min(2 * next_look, kLongestPause);
    waiting = std::move(later);
    if (!waiting.empty()) pause(next_look);
  }
}

}  // namespace millrace::worker
