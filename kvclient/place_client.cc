// SPDX-License-Identifier: Apache-2.0
#include "kvclient/place_client.h"

namespace millrace::kvclient {

namespace {

// A rank on this host that does not accept a connection for this long is left to the transport.
constexpr std::chrono::seconds kConnectLimit{5};
// Per thread: connections to groups that are gone are eventually dropped.
constexpr size_t kMaxConnections = 256;

// Whether a device may fetch the pages itself.
bool is_for_device(const PullTask& task) {
  const int64_t bytes = task.manifest->page_bytes();
  return task.request.device != kHostMemory && bytes <= kMaxGatheredPageBytes &&
         bytes % kGatheredPageStep == 0;
}

}  // namespace

Result<PlaceClient::Answer> PlaceClient::ask(const PullQueue::Work& work) {
  const auto& task = *work.task;
  const PageRun& run = work.job.run;
  Answer answer{.places = {.run = run, .pages = {}}, .pools = {}, .device_pool = {}};
  const std::string& address = task.address(work.job);
  const std::string socket = ranks_.socket_of(address);
  Rank* const rank = socket.empty() ? nullptr : rank_of(work, socket);
  if (rank == nullptr) return answer;
  const bool for_device = is_for_device(task);
  auto called = call(work, *rank, place_request(*task.manifest, run, for_device));
  if (!called.ok()) {
    // Reporting a lost rank is up to the transport. The rank's next life has another socket.
    connected_.erase(socket);
    if (called.error().code == Errc::kCancelled) return called.error();
    return answer;
  }
  MR_ASSIGN_OR_RETURN(auto reply, read_place_reply(*called, address, run));
  if (auto taken = take_memory(socket, *rank, reply.device_pool_bytes); !taken.ok()) {
    give_up(work, socket, taken.error());
    return answer;
  }
  answer.places.pages = std::move(reply.pages);
  answer.pools = rank->pools;
  if (reply.device_pool_bytes > 0) {
    answer.device_pool = device_pools_.get(address, socket, task.request.device);
  }
  return answer;
}

void PlaceClient::done(const PullQueue::Work& work) {
  const auto known = connected_.find(ranks_.socket_of(work.task->address(work.job)));
  if (known != connected_.end()) known->second.connection->done();
}

PlaceClient::Rank* PlaceClient::rank_of(const PullQueue::Work& work, const std::string& socket) {
  const auto known = connected_.find(socket);
  if (known != connected_.end()) return &known->second;
  if (connected_.size() >= kMaxConnections) connected_.clear();
  const auto limit = work.task->deadline.earlier_of(Deadline::after(kConnectLimit));
  auto opened = comm::MemfdConnection::open(socket, limit);
  if (!opened.ok()) {
    ranks_.give_up(work.task->address(work.job), socket, opened.error());
    return nullptr;
  }
  return &connected_.emplace(socket, Rank{.connection = std::move(*opened), .pools = nullptr})
              .first->second;
}

Result<std::string> PlaceClient::call(const PullQueue::Work& work, Rank& rank,
                                      const std::string& request) {
  if (!queue_.begin_call(thread_, *rank.connection)) {
    return Error(Errc::kCancelled, "the pull has ended");
  }
  auto called = rank.connection->call(request, work.task->deadline);
  if (!queue_.end_call(thread_)) return Error(Errc::kCancelled, "the pull has ended");
  return called;
}

// A refusal brings no memory, and needs none.
Result<void> PlaceClient::take_memory(const std::string& socket, Rank& rank,
                                      int64_t device_pool_bytes) {
  auto descriptors = rank.connection->take_descriptors();
  // In an answer with a device pool, its descriptor is the last; the others came before it.
  if (device_pool_bytes > 0 && !descriptors.empty()) {
    device_pools_.learn(socket, std::move(descriptors.back()), device_pool_bytes);
    descriptors.pop_back();
  }
  if (!rank.pools && !descriptors.empty()) {
    MR_ASSIGN_OR_RETURN(rank.pools, ranks_.map(socket, descriptors));
  }
  if (rank.pools || device_pool_bytes > 0) return {};
  return Error(Errc::kCorrupt, "it sent no memory to map");
}

void PlaceClient::give_up(const PullQueue::Work& work, const std::string& socket,
                          const Error& why) {
  connected_.erase(socket);
  ranks_.give_up(work.task->address(work.job), socket, why);
}

}  // namespace millrace::kvclient
