// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_server_lane.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "common/log.h"

namespace millrace::comm {

namespace {

using State = TcpStream::State;

// How late a client whose time is over is dropped at most, and a request that had to wait is begun.
constexpr std::chrono::milliseconds kSweepPeriod{250};
constexpr std::chrono::milliseconds kSweepPeriodInCrowd{10};
// Writes for one client before the next one gets its turn.
constexpr int kWritesAtOnce = 16;

}  // namespace

Result<std::unique_ptr<TcpServerLane>> TcpServerLane::create(Context context) {
  MR_ASSIGN_OR_RETURN(auto epoll, Epoll::create());
  return std::unique_ptr<TcpServerLane>(new TcpServerLane(std::move(context), std::move(epoll)));
}

TcpServerLane::~TcpServerLane() {
  stopping_.store(true);
  epoll_.wake();
  if (thread_.joinable()) thread_.join();
  for (auto& [id, client] : clients_) release_reply(*client);
}

void TcpServerLane::start() {
  thread_ = std::thread([this] { run(); });
}

void TcpServerLane::adopt(TcpStream stream, ConnectionQuota::Connection admitted) {
  auto client = std::make_unique<Client>(std::move(stream), std::move(admitted));
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(std::move(client));
  }
  epoll_.wake();
}

void TcpServerLane::run() {
  std::array<epoll_event, 64> room{};
  while (!stopping_.load()) {
    const auto events = epoll_.wait(room, patience_ms());
    try {
      for (const auto& event : events) {
        if (event.data.u64 != Epoll::kWakeId) serve(event.data.u64, event.events);
      }
      take_arrivals();
      take_answers();
      drop_those_that_give_way();
      sweep();
    } catch (const std::exception& why) {  // no memory: the next turn may find some
      say_end(why.what());
    }
  }
}

int TcpServerLane::patience_ms() const {
  if (clients_.empty()) return -1;
  return static_cast<int>((num_queued_ > 0 ? kSweepPeriodInCrowd : kSweepPeriod).count());
}

void TcpServerLane::take_arrivals() {
  std::vector<std::unique_ptr<Client>> arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (auto& client : arrivals) {
    const uint64_t id = next_id_++;
    enter(*client, Phase::kRequest);
    client->admitted.set_on_evicted([this] {
      some_give_way_.store(true);
      epoll_.wake();
    });
    const bool watched = epoll_.add(client->stream.descriptor(), id, client->watched).ok();
    clients_.emplace(id, std::move(client));
    if (watched) {
      serve(id, 0);  // TLS may have read its request already
    } else {
      drop(id, "it cannot be watched");
    }
  }
}

void TcpServerLane::take_answers() {
  std::vector<Answer> answers;
  {
    const std::lock_guard lock(mutex_);
    answers.swap(answers_);
  }
  for (auto& answer : answers) {
    const auto found = clients_.find(answer.client);
    if (found == clients_.end()) continue;  // it has gone
    start_reply(*found->second, std::move(answer.reply));
    if (!advance(answer.client, *found->second)) drop(answer.client, nullptr);
  }
}

void TcpServerLane::serve(uint64_t id, uint32_t events) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  // A client that has closed does not read its reply either.
  const bool gone = (events & (EPOLLERR | EPOLLHUP)) != 0 ||
                    ((events & EPOLLRDHUP) != 0 && found->second->phase != Phase::kRequest);
  if (gone || !advance(id, *found->second)) drop(id, nullptr);
}

bool TcpServerLane::advance(uint64_t id, Client& client) noexcept {
  try {
    if (client.phase == Phase::kReply && !send_reply(id, client)) return false;
    return client.phase != Phase::kRequest || read_request(id, client);
  } catch (const std::exception& why) {
    say_end(why.what());
    return false;
  }
}

bool TcpServerLane::read_request(uint64_t id, Client& client) {
  while (true) {
    const auto io = client.stream.read(client.reader.room());
    if (io.state == State::kWantsRead) return wait_for(id, client, EPOLLIN);
    if (io.state == State::kWantsWrite) return wait_for(id, client, EPOLLOUT);
    if (io.state != State::kDone) return false;
    if (!client.reader.in_request()) enter(client, Phase::kRequest);  // its time limit starts
    auto request = client.reader.took(io.bytes);
    if (!request.ok()) {
      say_end(request.error().message);
      ++context_.counts.failures;
      return false;
    }
    if (!*request) continue;
    client.request = **std::move(request);
    if (!begin(id, client)) return false;
    // If the reply left at once, the client's next request waits for its next turn. With TLS the
    // stream may already hold that request, and the system would not report it.
    if (client.phase != Phase::kRequest || !client.stream.encrypted()) return true;
  }
}

bool TcpServerLane::begin(uint64_t id, Client& client) {
  if (!client.admitted.begin()) return false;
  if (crowded()) {
    if (client.phase != Phase::kQueued) ++num_queued_;
    enter(client, Phase::kQueued);
    return wait_for(id, client, 0);
  }
  ++context_.counts.requests;
  context_.counts.bytes_received += static_cast<int64_t>(client.request.header.size());
  ReplyMaker::Reply reply =
      context_.replies.call([&] { return context_.handler(client.request.header); },
                            client.request.frame.destination_bytes);
  if (reply.content.later) {
    enter(client, Phase::kLater);
    answer_later(id, client, std::move(reply.content.later));
    return wait_for(id, client, 0);
  }
  start_reply(client, std::move(reply));
  return send_reply(id, client);
}

void TcpServerLane::answer_later(uint64_t id, const Client& client, ReplyMaker::Make make) {
  const int64_t destination_bytes = client.request.frame.destination_bytes;
  context_.readers.post([this, id, destination_bytes, make = std::move(make)] {
    ReplyMaker::Reply reply = context_.replies.call(make, destination_bytes);
    {
      const std::lock_guard lock(mutex_);
      answers_.push_back({.client = id, .reply = std::move(reply)});
    }
    epoll_.wake();
  });
}

void TcpServerLane::start_reply(Client& client, ReplyMaker::Reply reply) {
  const ReplyFrame frame{.errc = reply.errc,
                         .header_bytes = static_cast<uint32_t>(reply.content.header.size()),
                         .call = client.request.frame.call,
                         .payload_bytes = reply.payload_bytes};
  client.request = {};
  client.frame = write_reply_frame(frame);
  client.reply = std::move(reply.content);
  client.left.clear();
  client.left.add(std::span<const std::byte>(client.frame));
  client.left.add(std::as_bytes(std::span(std::as_const(client.reply.header))));
  for (const auto piece : client.reply.payload.pieces) client.left.add(piece);
  const auto bytes = static_cast<int64_t>(client.left.bytes_left());
  context_.counts.reply_bytes += bytes - std::exchange(client.counted_bytes, bytes);
  context_.counts.bytes_sent += bytes - static_cast<int64_t>(kReplyFrameBytes);
  enter(client, Phase::kReply);
}

bool TcpServerLane::send_reply(uint64_t id, Client& client) {
  for (int i = 0; !client.left.done(); ++i) {
    if (i == kWritesAtOnce) return wait_for(id, client, EPOLLOUT);
    const auto io = client.stream.write(client.left.next());
    if (io.state == State::kWantsWrite) return wait_for(id, client, EPOLLOUT);
    if (io.state == State::kWantsRead) return wait_for(id, client, EPOLLIN);
    if (io.state != State::kDone) return false;
    client.left.advance(io.bytes);
    client.progress_at = Clock::steady().now();
  }
  release_reply(client);
  client.admitted.end();
  enter(client, Phase::kRequest);
  return wait_for(id, client, EPOLLIN);
}

bool TcpServerLane::wait_for(uint64_t id, Client& client, uint32_t events) {
  const uint32_t wanted = events | EPOLLRDHUP;
  if (client.watched == wanted) return true;
  client.watched = wanted;
  return epoll_.change(client.stream.descriptor(), id, wanted).ok();
}

void TcpServerLane::enter(Client& client, Phase phase) {
  if (client.phase == Phase::kQueued && phase != Phase::kQueued) --num_queued_;
  client.phase = phase;
  client.phase_since = client.progress_at = Clock::steady().now();
}

void TcpServerLane::release_reply(Client& client) {
  context_.counts.reply_bytes -= std::exchange(client.counted_bytes, 0);
  client.left.clear();
  client.reply = {};
}

void TcpServerLane::say_end(const std::string& why) {
  if (const auto times = context_.line.due()) {
    log::warn("KV server {}: a client's connection ends: {}{}", context_.name, why,
              PacedLine::others(*times));
  }
}

void TcpServerLane::drop_those_that_give_way() {
  if (!some_give_way_.exchange(false)) return;
  std::erase_if(clients_, [](const auto& entry) { return entry.second->admitted.gives_way(); });
}

void TcpServerLane::drop(uint64_t id, const char* why) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  if (why != nullptr) {
    say_end(why);
    ++context_.counts.failures;
  }
  release_reply(*found->second);
  if (found->second->phase == Phase::kQueued) --num_queued_;
  clients_.erase(found);
}

const char* TcpServerLane::overdue(const Client& client, TimePoint now) const {
  const TcpLimits& limits = context_.limits;
  const auto since = now - client.phase_since;
  switch (client.phase) {
    case Phase::kRequest:
      if (client.reader.in_request()) {
        return since > limits.request ? "its request took too long to come" : nullptr;
      }
      return since > limits.idle ? "it asked for nothing" : nullptr;
    case Phase::kReply:
      if (since > limits.reply) return "it took too long to take a reply";
      if (now - client.progress_at > limits.stall) return "it did not go on taking a reply";
      if (since > limits.reply_in_crowd && crowded()) {
        return "it took its time for a reply while others had to wait";
      }
      return nullptr;
    case Phase::kQueued:
    case Phase::kLater:
      break;  // the server's own time
  }
  return nullptr;
}

void TcpServerLane::sweep() {
  const auto now = Clock::steady().now();
  if (now < next_sweep_ && num_queued_ == 0) return;
  next_sweep_ = now + kSweepPeriod;
  std::vector<std::pair<uint64_t, const char*>> late;
  std::vector<uint64_t> queued;
  for (const auto& [id, client] : clients_) {
    if (const char* const why = overdue(*client, now)) late.emplace_back(id, why);
    if (client->phase == Phase::kQueued) queued.push_back(id);
  }
  for (const auto& [id, why] : late) drop(id, why);
  // Those that came first are served first.
  std::ranges::sort(queued);
  for (const uint64_t id : queued) {
    if (crowded()) break;
    const auto found = clients_.find(id);
    if (found == clients_.end()) continue;
    Client& client = *found->second;
    bool stays = false;
    try {
      stays = begin(id, client) && advance(id, client);
    } catch (const std::exception& why) {
      say_end(why.what());
    }
    if (!stays) drop(id, nullptr);
  }
}

}  // namespace millrace::comm
