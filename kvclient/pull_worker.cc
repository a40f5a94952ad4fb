// SPDX-License-Identifier: Apache-2.0
#include "kvclient/pull_worker.h"

#include <algorithm>

#include "comm/api/destination_writer.h"
#include "common/checksum.h"
#include "kvclient/page_decoder.h"

namespace millrace::kvclient {

namespace {

// Runs of memory shorter than this cost the transport more than a copy from the cache does.
constexpr int64_t kMinRunBytes = 2048;
// A rank that does not answer for this long is lost, whatever time the pull has left.
constexpr std::chrono::seconds kConnectLimit{5};
// Per thread: connections to groups that are gone are eventually dropped.
constexpr size_t kMaxConnections = 256;

}  // namespace

PullWorker::PullWorker(PullQueue& queue, comm::Transport& transport, SameHost* same_host,
                       DeviceCopier& copier, int thread, int32_t max_refetches)
    : queue_(queue),
      transport_(transport),
      same_host_(same_host),
      copier_(copier),
      thread_(thread),
      max_refetches_(max_refetches) {
  if (same_host_ != nullptr) {
    place_client_.emplace(queue_, same_host_->ranks, same_host_->device_pools, thread_);
  }
}

void PullWorker::run() {
  while (const auto work = queue_.take(thread_)) {
    queue_.finish(thread_, *work, fetch(*work));
  }
}

Result<PullOutcome> PullWorker::fetch(const Work& work) {
  if (work.job.is_for_scores()) return fetch_scores(work);
  const auto& task = *work.task;
  const PageDecoder decoder(task.request, *task.manifest);
  sink_.resize(std::max(sink_.size(), static_cast<size_t>(2 * decoder.page_bytes())));
  const PagePieces pieces(task.request, *task.manifest, sink_);
  auto outcome = task.request.device == kHostMemory ? fetch_to_host(work, pieces)
                                                    : fetch_to_device(work, pieces);
  if (place_client_) place_client_->done(work);
  return outcome;
}

Result<PlaceClient::Answer> PullWorker::ask_for_places(const Work& work) {
  if (place_client_) return place_client_->ask(work);
  return PlaceClient::Answer{
      .places = {.run = work.job.run, .pages = {}}, .pools = nullptr, .device_pool = nullptr};
}

Result<PullOutcome> PullWorker::fetch_to_host(const Work& work, const PagePieces& pieces) {
  PullOutcome outcome;
  MR_ASSIGN_OR_RETURN(const auto answer, ask_for_places(work));
  const PageDecoder decoder(work.task->request, *work.task->manifest);
  const auto left = host_reader_.read(answer.places, answer.pools.get(), pieces, decoder, outcome);
  for (const PageRun& run : left) {
    MR_RETURN_IF_ERROR(fetch_run(work, run, pieces, outcome));
  }
  return outcome;
}

// The calls that brought the pages, or told where they lie, keep the pull from ending until
// finish(), so no copy outlives the pull.
Result<PullOutcome> PullWorker::fetch_to_device(const Work& work, const PagePieces& pieces) {
  PullOutcome outcome;
  MR_ASSIGN_OR_RETURN(DeviceLane* const lane, this->lane(work.task->request.device));
  MR_ASSIGN_OR_RETURN(const auto answer, ask_for_places(work));
  // Pages that must be decoded go through host memory.
  const bool decodes = PageDecoder(work.task->request, *work.task->manifest).decodes();
  auto left = decodes ? Result(std::vector{answer.places})
                      : device_pool_reader_.read(answer, pieces, sink_, *lane, outcome);
  auto end = left.status();
  for (size_t i = 0; end.ok() && i < left->size(); ++i) {
    end = stage(work, (*left)[i], answer.pools.get(), pieces, *lane, outcome);
  }
  if (end.ok()) return outcome;
  if (end.error().code == Errc::kInternal) lanes_.erase(work.task->request.device);
  return end.error();
}

// The bytes copied are the bytes checked, because nobody else writes to the staging memory.
Result<void> PullWorker::stage(const Work& work, const PlacedRun& placed,
                               const SameHostRanks::Pools* pools, const PagePieces& pieces,
                               DeviceLane& lane, PullOutcome& outcome) {
  const auto& task = *work.task;
  const PageDecoder decoder(task.request, *task.manifest);
  MR_ASSIGN_OR_RETURN(const auto staging,
                      lane.staging(placed.run.num_pages * decoder.page_bytes()));
  const PagePieces staged(placed.run, task.request, *task.manifest, staging);
  for (const auto& run : host_reader_.read(placed, pools, staged, decoder, outcome)) {
    MR_RETURN_IF_ERROR(fetch_run(work, run, staged, outcome));
  }
  return scatter(placed.run, pieces, lane);
}

Result<void> PullWorker::scatter(const PageRun& run, const PagePieces& pieces, DeviceLane& lane) {
  device_pieces_.clear();
  size_t from = 0;
  for (int64_t i = 0; i < run.num_pages; ++i) {
    page_pieces_.clear();
    pieces.append(run.layer, run.kv_head, run.page(i), page_pieces_);
    for (const auto& piece : page_pieces_) {
      if (piece.data() < sink_.data() || piece.data() >= sink_.data() + sink_.size()) {
        device_pieces_.push_back({.to = piece.data(),
                                  .from = static_cast<uint32_t>(from),
                                  .bytes = static_cast<uint32_t>(piece.size())});
      }
      from += piece.size();
    }
  }
  return lane.scatter(static_cast<int64_t>(from), device_pieces_);
}

Result<DeviceLane*> PullWorker::lane(int32_t device) {
  auto known = lanes_.find(device);
  if (known == lanes_.end()) {
    MR_ASSIGN_OR_RETURN(auto opened, copier_.open(device));
    known = lanes_.emplace(device, std::move(opened)).first;
  }
  return known->second.get();
}

Result<PullOutcome> PullWorker::fetch_scores(const Work& work) {
  PullOutcome outcome;
  outcome.scores.resize(static_cast<size_t>(work.job.scores.num_scores()));
  const auto bytes = std::as_writable_bytes(std::span(outcome.scores));
  MR_ASSIGN_OR_RETURN(const auto reply,
                      exchange(work, score_request(*work.task->manifest, work.job.scores),
                               comm::Destination(&bytes, 1), outcome));
  MR_RETURN_IF_ERROR(check_score_reply(reply, work.task->address(work.job), outcome.scores));
  return outcome;
}

Result<void> PullWorker::fetch_run(const Work& work, const PageRun& run, const PagePieces& pieces,
                                   PullOutcome& outcome) {
  const bool decodes = PageDecoder(work.task->request, *work.task->manifest).decodes();
  return decodes || pieces.run_bytes(run.layer) < kMinRunBytes
             ? fetch_and_copy(work, run, pieces, outcome)
             : fetch_in_place(work, run, pieces, outcome);
}

Result<void> PullWorker::fetch_in_place(const Work& work, const PageRun& run,
                                        const PagePieces& pieces, PullOutcome& outcome) {
  pieces_.clear();
  for (int64_t i = 0; i < run.num_pages; ++i) {
    pieces.append(run.layer, run.kv_head, run.page(i), pieces_);
  }
  const auto place = [&](int64_t index) -> comm::Destination {
    page_pieces_.clear();
    pieces.append(run.layer, run.kv_head, run.page(index), page_pieces_);
    return page_pieces_;
  };
  return fetch_checked(
      work, run, pieces_, place, [](int64_t) {}, outcome);
}

Result<void> PullWorker::fetch_and_copy(const Work& work, const PageRun& run,
                                        const PagePieces& pieces, PullOutcome& outcome) {
  const auto page_bytes = static_cast<size_t>(work.task->manifest->page_bytes());
  const size_t bytes = static_cast<size_t>(run.num_pages) * page_bytes;
  staging_.resize(std::max(staging_.size(), bytes));
  const auto staged = std::span(staging_).first(bytes);
  std::span<std::byte> page;
  const auto place = [&](int64_t index) {
    page = staged.subspan(static_cast<size_t>(index) * page_bytes, page_bytes);
    return comm::Destination(&page, 1);
  };
  const PageDecoder decoder(work.task->request, *work.task->manifest);
  const auto keep = [&](int64_t index) {
    page_pieces_.clear();
    pieces.append(run.layer, run.kv_head, run.page(index), page_pieces_);
    comm::DestinationWriter(page_pieces_)
        .write(decoder.decode(run.layer, run.kv_head, place(index).front(), decoded_));
  };
  return fetch_checked(work, run, comm::Destination(&staged, 1), place, keep, outcome);
}

Result<void> PullWorker::fetch_checked(const Work& work, const PageRun& run,
                                       comm::Destination destination, const Place& place,
                                       const Keep& keep, PullOutcome& outcome) {
  landing_.begin(run, work.task->manifest->page_bytes(),
                 [&](int64_t index, const PulledPage& page) {
                   if (checksum(place(index)) != page.checksum) return false;
                   keep(index);
                   return true;
                 });
  auto pulled = call(work, run, destination, outcome);
  landing_.end();
  if (!pulled.ok()) return pulled.error();
  for (int64_t i = 0; i < run.num_pages; ++i) {
    PulledPage& page = (*pulled)[static_cast<size_t>(i)];
    if (!landing_.taken(i)) {
      MR_RETURN_IF_ERROR(make_good(work, run, i, place(i), page, outcome));
      keep(i);
    }
    ++outcome.pages_by_tier[page.tier];
  }
  return {};
}

Result<void> PullWorker::make_good(const Work& work, const PageRun& run, int64_t index,
                                   comm::Destination page, PulledPage& pulled,
                                   PullOutcome& outcome) {
  const PageRun single{.layer = run.layer,
                       .kv_head = run.kv_head,
                       .first_page = run.page(index),
                       .num_pages = 1,
                       .named = {}};
  for (int32_t attempt = 0; checksum(page) != pulled.checksum; ++attempt) {
    ++outcome.corrupt_pages;
    if (attempt >= max_refetches_) {
      return error(Errc::kCorrupt,
                   "layer {}, kv head {}, page {} from {}: checksum {:016x}, expected {:016x}, "
                   "after {} fetches",
                   single.layer, single.kv_head, single.first_page, work.task->address(work.job),
                   checksum(page), pulled.checksum, attempt + 1);
    }
    MR_ASSIGN_OR_RETURN(const auto again, call(work, single, page, outcome));
    pulled = again.front();
  }
  return {};
}

Result<std::vector<PulledPage>> PullWorker::call(const Work& work, const PageRun& run,
                                                 comm::Destination destination,
                                                 PullOutcome& outcome) {
  MR_ASSIGN_OR_RETURN(const auto reply,
                      exchange(work, page_request(*work.task->manifest, run, /*digests=*/false),
                               destination, outcome));
  const std::string& address = work.task->address(work.job);
  MR_ASSIGN_OR_RETURN(auto answer,
                      read_page_reply(reply, address, run, comm::total_bytes(destination)));
  if (same_host_ != nullptr) same_host_->ranks.learn(address, answer.same_host_socket);
  return std::move(answer.pages);
}

Result<comm::TransportConnection::Reply> PullWorker::exchange(const Work& work,
                                                              const std::string& request,
                                                              comm::Destination destination,
                                                              PullOutcome& outcome) {
  const auto& task = *work.task;
  const std::string& address = task.address(work.job);
  while (true) {
    bool is_new = false;
    MR_ASSIGN_OR_RETURN(Connection* const connection, this->connection(work, is_new));
    if (!queue_.begin_call(thread_, *connection->to)) {
      return Error(Errc::kCancelled, "the pull has ended");
    }
    landing_.restart();
    const auto called = connection->to->call_into(request, destination, task.deadline);
    const bool undisturbed = queue_.end_call(thread_);
    const std::string transport_name = connection->transport_name;
    // Destroying a connection waits until it writes nothing more.
    if (!called.ok() || !undisturbed) connections_.erase(address);
    if (called.ok()) {
      outcome.add_bytes(transport_name, called->payload_bytes);
      return *called;
    }
    // The rank may have restarted since this connection was last used.
    if (is_new || !undisturbed || called.error().code != Errc::kPeerLost) return called.error();
  }
}

Result<PullWorker::Connection*> PullWorker::connection(const Work& work, bool& is_new) {
  const std::string& address = work.task->address(work.job);
  auto known = connections_.find(address);
  is_new = known == connections_.end();
  if (is_new) {
    if (connections_.size() >= kMaxConnections) drop_oldest_connection();
    const auto limit = work.task->deadline.earlier_of(Deadline::after(kConnectLimit));
    auto connected = transport_.connect(address, work.task->manifest->lease_id, limit);
    if (!connected.ok()) {
      const Error why = of_connection(*work.task->manifest, connected.error());
      const bool silent = why.code == Errc::kDeadlineExceeded;
      const bool late = work.task->deadline.passed();
      return Error(silent && !late ? Errc::kPeerLost : why.code, why.message);
    }
    Connection made{.to = std::move(*connected), .transport_name = {}};
    made.transport_name = made.to->transport_name();
    made.to->observe(&landing_);
    known = connections_.emplace(address, std::move(made)).first;
  }
  known->second.used = ++num_calls_;
  return &known->second;
}

void PullWorker::drop_oldest_connection() {
  connections_.erase(
      std::min_element(connections_.begin(), connections_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
}

}  // namespace millrace::kvclient
