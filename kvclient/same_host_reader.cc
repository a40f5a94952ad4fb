#include "kvclient/same_host_reader.h"

#include <algorithm>
#include <cstring>

#include "common/checksum.h"
#include "common/system/stream_copy.h"
#include "kvclient/page_decoder.h"

namespace millrace::kvclient {

namespace {

constexpr std::string_view kTransportName = "same-host";
// A rank on this host that does not take a connection for so long is left to the transport.
constexpr std::chrono::seconds kConnectLimit{5};
// Of one thread: those to groups that are gone go in the end.
constexpr size_t kMaxConnections = 256;

// These pages of `of`, as runs of its kind.
std::vector<PageRun> runs_of(const PageRun& of, std::vector<int64_t> pages) {
  std::vector<PageRun> runs;
  const auto add = [&](int64_t first_page, int64_t num_pages) {
    runs.push_back({.layer = of.layer,
                    .kv_head = of.kv_head,
                    .first_page = first_page,
                    .num_pages = num_pages,
                    .named = {}});
  };
  if (!of.named.empty() && !pages.empty()) {
    add(pages.front(), std::ssize(pages));
    runs.back().named = std::move(pages);
    return runs;
  }
  for (const int64_t page : pages) {
    if (!runs.empty() && runs.back().first_page + runs.back().num_pages == page) {
      ++runs.back().num_pages;
    } else {
      add(page, 1);
    }
  }
  return runs;
}

}  // namespace

Result<std::vector<PageRun>> SameHostReader::read(const PullQueue::Work& work,
                                                  const PagePlaces& places, PullOutcome& outcome) {
  const PageRun& run = work.job.run;
  const std::string socket = ranks_.socket_of(work.task->address(work.job));
  Rank* const rank = socket.empty() ? nullptr : rank_of(work, socket);
  if (rank == nullptr) return std::vector{run};
  MR_ASSIGN_OR_RETURN(const auto answer, ask(work, socket, *rank));
  if (!answer) return std::vector{run};
  const PageDecoder decoder(work.task->request, *work.task->manifest);
  const int64_t page_bytes = work.task->manifest->page_bytes();
  page_.resize(static_cast<size_t>(page_bytes));
  std::vector<int64_t> left;
  for (int64_t i = 0; i < run.num_pages; ++i) {
    const PlacedPage& page = (*answer)[static_cast<size_t>(i)];
    const auto staged = places.staged(run.page(i));
    const bool is_direct = !staged.empty() && !decoder.decodes();
    const auto to = is_direct ? staged : std::span(page_);
    if (!copy(page, *rank->pools, to)) {
      left.push_back(run.page(i));
      continue;
    }
    if (checksum(std::span<const std::byte>(to)) != page.page.checksum) {
      ++outcome.corrupt_pages;
      left.push_back(run.page(i));
      continue;
    }
    if (!is_direct) {
      pieces_.clear();
      places.append(run.layer, run.kv_head, run.page(i), pieces_);
      stream_copy(pieces_, decoder.decode(run.layer, page_, decoded_).data());
    }
    ++outcome.pages_by_tier[page.page.tier];
    outcome.add_bytes(kTransportName, page_bytes);
  }
  rank->connection->done();
  return runs_of(run, std::move(left));
}

SameHostReader::Rank* SameHostReader::rank_of(const PullQueue::Work& work,
                                              const std::string& socket) {
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

Result<std::optional<std::vector<PlacedPage>>> SameHostReader::ask(const PullQueue::Work& work,
                                                                   const std::string& socket,
                                                                   Rank& rank) {
  const auto& task = *work.task;
  const std::string request = page_request(*task.manifest, work.job.run, /*digests=*/false);
  if (!queue_.begin_call(thread_, *rank.connection)) {
    return Error(Errc::kCancelled, "the pull has ended");
  }
  const auto called = rank.connection->call(request, task.deadline);
  if (!queue_.end_call(thread_)) {
    connected_.erase(socket);
    return Error(Errc::kCancelled, "the pull has ended");
  }
  const auto mapped = called.ok() ? map_pools(socket, rank) : called.error();
  if (!mapped.ok()) {
    // A rank that is gone is for the transport to tell; its socket is not found again.
    if (called.ok()) ranks_.give_up(task.address(work.job), socket, mapped.error());
    connected_.erase(socket);
    return std::optional<std::vector<PlacedPage>>();
  }
  MR_ASSIGN_OR_RETURN(auto pages, read_place_reply(*called, task.address(work.job), work.job.run));
  if (rank.pools) return std::optional(std::move(pages));
  connected_.erase(socket);
  ranks_.give_up(task.address(work.job), socket, Error(Errc::kCorrupt, "it sent no memory to map"));
  return std::optional<std::vector<PlacedPage>>();
}

// A refusal brings none, and needs none.
Result<void> SameHostReader::map_pools(const std::string& socket, Rank& rank) {
  const auto descriptors = rank.connection->take_descriptors();
  if (rank.pools || descriptors.empty()) return {};
  MR_ASSIGN_OR_RETURN(rank.pools, ranks_.map(socket, descriptors));
  return {};
}

// False where it cannot be.
bool SameHostReader::copy(const PlacedPage& page, const SameHostRanks::Pools& pools,
                          std::span<std::byte> to) {
  if (page.pool == 0 || page.pool > pools.size()) return false;
  const auto pool = pools[page.pool - 1].bytes();
  if (page.offset > pool.size() || to.size() > pool.size() - page.offset) return false;
  std::memcpy(to.data(), pool.data() + page.offset, to.size());
  return true;
}

}  // namespace millrace::kvclient
