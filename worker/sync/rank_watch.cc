// SPDX-License-Identifier: Apache-2.0
#include "worker/sync/rank_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "common/log.h"

namespace millrace::worker {

namespace {

constexpr auto kHeartbeatInterval = std::chrono::milliseconds(200);
// Five heartbeats. A thread that only sends heartbeats is not kept off its core for so long.
constexpr auto kSilence = std::chrono::seconds(1);
// Ranks reach the same deadline at different times, up to half a second apart on a busy machine. An
// engine that ends by itself tells the coordinator more than the end of its process would.
constexpr auto kGrace = std::chrono::seconds(1);

// The messages between ranks.
constexpr char kHeartbeat = 'h';
constexpr char kGoodbye = 'b';
constexpr char kGivesUp = 'g';
constexpr char kEnds = 'e';

}  // namespace

Result<std::unique_ptr<RankWatch>> RankWatch::start(comm::Communicator& world,
                                                    const std::string& host,
                                                    const std::string& epoch,
                                                    engine::EndHandler end_process,
                                                    Deadline deadline) {
  std::unique_ptr<RankWatch> rank_watch(new RankWatch(std::move(end_process)));
  auto& peers = rank_watch->peers_;
  WatchEndpoint endpoint;
  Result<WatchSocket> listener = WatchSocket();
  if (world.rank() == 0) listener = listen_for_ranks(host, endpoint);
  MR_RETURN_IF_ERROR(
      world.broadcast(std::as_writable_bytes(std::span(&endpoint, 1)), /*root=*/0, deadline));
  if (!listener.ok()) return listener.error();
  if (endpoint.port[0] == 0)
    return error(Errc::kPeerLost,
                 "rank 0 cannot listen for the group's watch; its own error says why");
  if (world.rank() != 0) {
    MR_ASSIGN_OR_RETURN(auto socket, connect_to_rank_0(endpoint, epoch, world.rank(), deadline));
    peers.push_back({.rank = 0, .socket = std::move(socket)});
  } else {
    RankArrivals arrivals(*listener, world.size(), epoch);
    while (static_cast<int>(peers.size()) < world.size() - 1) {
      MR_ASSIGN_OR_RETURN(auto greeted, arrivals.next(deadline));
      peers.push_back({.rank = greeted.rank, .socket = std::move(greeted.socket)});
    }
  }
  MR_RETURN_IF_ERROR(rank_watch->run());
  return rank_watch;
}

Result<std::unique_ptr<RankWatch>> RankWatch::alone(engine::EndHandler end_process) {
  std::unique_ptr<RankWatch> watch(new RankWatch(std::move(end_process)));
  MR_RETURN_IF_ERROR(watch->run());
  return watch;
}

Result<void> RankWatch::run() {
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) return error(Errc::kIo, "eventfd: {}", std::generic_category().message(errno));
  thread_ = std::jthread([this] { watch(); });
  return {};
}

void RankWatch::watch() {
  Deadline next_beat = Deadline::after(kHeartbeatInterval);
  while (wait_for_words(next_beat)) {
    if (next_beat.passed()) {
      say(kHeartbeat);
      warn_of_silence();
      next_beat = Deadline::after(kHeartbeatInterval);
    }
    const auto end = due_end();
    if (!end) continue;
    say(kEnds);
    const std::string silent = silent_ranks();
    return end_process_(Error(Errc::kPeerLost,
                              silent.empty() ? end->why : fmt::format("{}; {}", end->why, silent)));
  }
}

// Returns false when woken to end.
bool RankWatch::wait_for_words(Deadline longest) {
  std::vector<pollfd> polled;
  for (const auto& peer : peers_) {
    // poll() ignores negative descriptors.
    polled.push_back({.fd = peer.here ? peer.socket.fd() : -1, .events = POLLIN, .revents = 0});
  }
  polled.push_back({.fd = wake_, .events = POLLIN, .revents = 0});
  const auto longest_ms = std::chrono::ceil<std::chrono::milliseconds>(longest.left()).count();
  if (poll(polled.data(), polled.size(), static_cast<int>(longest_ms)) <= 0) return true;
  if (polled.back().revents != 0) return false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (polled[i].revents != 0) receive(peers_[i]);
  }
  return true;
}

void RankWatch::receive(Peer& peer) {
  std::array<char, 64> words{};
  const ssize_t count = recv(peer.socket.fd(), words.data(), words.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const std::string_view said(words.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
  const std::lock_guard lock(mutex_);
  const TimePoint now = Clock::steady().now();
  if (now - peer.received_at >= kSilence) peer.pause = now - peer.received_at;
  peer.received_at = now;
  peer.here = count > 0 && said.find_first_not_of(kHeartbeat) == std::string_view::npos;
  if (count <= 0) {
    end_within(Duration::zero(), fmt::format("rank {} is lost", peer.rank));
  } else if (said.find(kEnds) != std::string_view::npos) {
    end_within(Duration::zero(), fmt::format("rank {} ends the group", peer.rank));
  } else if (said.find(kGivesUp) != std::string_view::npos) {
    end_within(kGrace, fmt::format("rank {} gave up on the group", peer.rank));
  }
}

// With the mutex held. The earliest end counts.
void RankWatch::end_within(Duration duration, std::string why) {
  const auto due = Deadline::after(duration);
  if (!broken_ || due.when() < broken_->due.when()) broken_ = End{std::move(why), due};
}

void RankWatch::expect_step(const std::string& step, Duration allowed) {
  const std::lock_guard lock(mutex_);
  stuck_ = End{fmt::format("stuck in {}: not done within {:.1f} s", step, seconds(allowed)),
               Deadline::after(allowed + kGrace)};
  longest_silence_.reset();
  for (auto& peer : peers_) peer.pause = Duration::zero();
}

void RankWatch::expect_step(const std::string& step, Duration allowed, Duration silence) {
  expect_step(step, allowed);
  const std::lock_guard lock(mutex_);
  longest_silence_ = silence + kGrace;
}

void RankWatch::expect_nothing() {
  const std::lock_guard lock(mutex_);
  stuck_.reset();
  longest_silence_.reset();
}

std::optional<RankWatch::End> RankWatch::due_end() const {
  const std::lock_guard lock(mutex_);
  if (broken_ && broken_->due.passed()) return broken_;
  if (stuck_ && stuck_->due.passed()) return stuck_;
  return too_silent();
}

// With the mutex held.
std::optional<RankWatch::End> RankWatch::too_silent() const {
  if (!longest_silence_) return std::nullopt;
  const TimePoint now = Clock::steady().now();
  for (const auto& peer : peers_) {
    if (!peer.here || now - peer.received_at < *longest_silence_) continue;
    return End{fmt::format("rank {}, which this one waits for, does not answer", peer.rank),
               Deadline::after(Duration::zero())};
  }
  return std::nullopt;
}

std::string RankWatch::silent_ranks() const {
  const TimePoint now = Clock::steady().now();
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& peer : peers_) {
    const Duration silence = peer.here ? std::max(now - peer.received_at, peer.pause) : peer.pause;
    if (silence < kSilence) continue;
    text += fmt::format("{}rank {} silent for {:.1f} s", text.empty() ? "" : ", ", peer.rank,
                        seconds(silence));
  }
  return text;
}

// Warns once for each silence, before the silent rank makes others miss their deadline: an engine
// that waits for its GPU would end without naming a rank.
void RankWatch::warn_of_silence() {
  const TimePoint now = Clock::steady().now();
  const std::lock_guard lock(mutex_);
  for (auto& peer : peers_) {
    const bool silent = peer.here && now - peer.received_at >= kSilence;
    if (silent && !peer.warned) log::warn("rank {} is silent", peer.rank);
    peer.warned = silent;
  }
}

void RankWatch::say(char word) {
  // A peer that does not read, or is gone, is noticed elsewhere.
  for (const auto& peer : peers_) send(peer.socket.fd(), &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void RankWatch::give_up() {
  say(kGivesUp);
  if (!is_root()) std::this_thread::sleep_for(kGrace);
}

void RankWatch::leave() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_, 1);
  thread_.join();
  say(kGoodbye);
}

RankWatch::~RankWatch() {
  if (thread_.joinable()) {
    eventfd_write(wake_, 1);
    thread_.join();
  }
  if (wake_ >= 0) close(wake_);
}

}  // namespace millrace::worker
