// SPDX-License-Identifier: Apache-2.0
#include "worker/events/zmq/zmq_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "common/log.h"
#include "worker/events/event_batch.h"
#include "worker/events/held_pages.h"

namespace millrace::worker {

namespace {

// The sequence number that marks the end of a replay: -1.
constexpr uint64_t kEndOfReplay = ~uint64_t{0};

std::string big_endian(uint64_t number) {
  std::string bytes(sizeof number, '\0');
  for (size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

uint64_t from_big_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::shared_ptr<const std::vector<std::byte>> encode(std::span<const KvEvent> events) {
  return std::make_shared<const std::vector<std::byte>>(encode_event_batch(unix_time_s(), events));
}

std::shared_ptr<const std::vector<std::byte>> encode(const KvEvent& event) {
  return encode(std::span(&event, 1));
}

int64_t num_blocks(const KvEvent& event) {
  const auto* stored = std::get_if<BlocksStored>(&event);
  return stored == nullptr ? 0 : std::ssize(stored->hashes);
}

}  // namespace

Result<std::unique_ptr<ZmqPublisher>> ZmqPublisher::open(const ZmqPublisherOptions& options) {
  MR_ASSIGN_OR_RETURN(auto context, make_zmq_context());
  // XPUB is a PUB that also reports subscriptions.
  MR_ASSIGN_OR_RETURN(auto events, ZmqSocket::open(context.get(), ZMQ_XPUB, kMaxQueued));
  std::unique_ptr<ZmqPublisher> made(
      new ZmqPublisher(options, std::move(context), std::move(events)));
  MR_RETURN_IF_ERROR(made->start());
  return made;
}

ZmqPublisher::ZmqPublisher(const ZmqPublisherOptions& options, ZmqContext context, ZmqSocket events)
    : options_(options),
      context_(std::move(context)),
      events_(std::move(events)),
      buffer_(options.buffer_batches, options.buffer_bytes) {}

ZmqPublisher::~ZmqPublisher() {
  stop_.store(true);
  if (thread_.joinable()) {
    wake();
    thread_.join();
  }
  if (wake_fd_ >= 0) close(wake_fd_);
}

Result<void> ZmqPublisher::start() {
  // Also report subscriptions to topics to which others already subscribe.
  MR_RETURN_IF_ERROR(events_.set(ZMQ_XPUB_VERBOSE, 1));
  MR_RETURN_IF_ERROR(events_.bind(options_.endpoint));
  if (!options_.replay_endpoint.empty()) {
    // The queue holds a whole replay while its reader catches up; the replay ends where more is
    // needed.
    const int64_t most =
        std::min<int64_t>(options_.buffer_batches, std::numeric_limits<int>::max() - 1);
    MR_ASSIGN_OR_RETURN(auto replays,
                        ZmqSocket::open(context_.get(), ZMQ_ROUTER, static_cast<int>(most) + 1));
    replays_ = std::make_unique<ZmqSocket>(std::move(replays));
    MR_RETURN_IF_ERROR(replays_->set(ZMQ_ROUTER_MANDATORY, 1));
    MR_RETURN_IF_ERROR(replays_->bind(options_.replay_endpoint));
  }
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return Error(Errc::kInternal, "eventfd failed");
  publish({AllBlocksCleared()});
  thread_ = std::thread([this] { run(); });
  return {};
}

void ZmqPublisher::publish(std::vector<KvEvent> events) {
  for (const auto& event : events) {
    const auto payload = encode(event);
    std::lock_guard lock(mutex_);
    add(payload);
    if (std::holds_alternative<AllBlocksCleared>(event)) continue;
    at_start_ = false;
    start_.clear();
  }
  if (!events.empty()) wake();
}

void ZmqPublisher::publish_start(std::vector<KvEvent> events) {
  std::vector<Payload> payloads;
  for (size_t first = 0; first < events.size();) {
    size_t end = first + 1;
    for (int64_t blocks = num_blocks(events[first]); end < events.size(); ++end) {
      blocks += num_blocks(events[end]);
      if (blocks > HeldPages::kMaxStored) break;
    }
    payloads.push_back(encode(std::span(events).subspan(first, end - first)));
    first = end;
  }
  {
    std::lock_guard lock(mutex_);
    for (const auto& payload : payloads) add(payload);
    start_ = std::move(payloads);
  }
  wake();
}

void ZmqPublisher::wake() {
  // Fails only if the thread has been woken 2^64 - 2 times without running.
  static_cast<void>(eventfd_write(wake_fd_, 1));
}

void ZmqPublisher::run() {
  std::array<zmq_pollitem_t, 3> waited = {{{nullptr, wake_fd_, ZMQ_POLLIN, 0},
                                           {events_.get(), 0, ZMQ_POLLIN, 0},
                                           {nullptr, 0, ZMQ_POLLIN, 0}}};
  if (replays_ != nullptr) waited[2].socket = replays_->get();
  while (!stop_.load()) {
    if (zmq_poll(waited.data(), replays_ != nullptr ? 3 : 2, -1) < 0) continue;  // a signal
    eventfd_t ignored = 0;
    if (waited[0].revents != 0) static_cast<void>(eventfd_read(wake_fd_, &ignored));
    if (waited[1].revents != 0) read_subscriptions();
    send_new();
    if (replays_ != nullptr && waited[2].revents != 0) serve_replays();
  }
}

void ZmqPublisher::send_new() {
  std::vector<EventBatch> batches;
  {
    std::lock_guard lock(mutex_);
    batches = std::exchange(unsent_, {});
  }
  for (const auto& batch : batches) {
    const std::string sequence = big_endian(batch.sequence);
    events_.send(std::array<std::string_view, 2>{options_.topic, sequence}, batch.payload);
  }
}

// A message is a byte, 1 for subscribe and 0 for unsubscribe, and the topic.
void ZmqPublisher::read_subscriptions() {
  bool is_subscribed = false;
  for (auto parts = events_.receive(); !parts.empty(); parts = events_.receive()) {
    is_subscribed = is_subscribed || (!parts.front().empty() && parts.front().front() == 1);
  }
  if (!is_subscribed) return;
  const auto cleared = encode(AllBlocksCleared());
  std::lock_guard lock(mutex_);
  if (!at_start_) return;
  add(cleared);
  for (const auto& payload : start_) add(payload);
}

// From a REQ client, or a DEALER that sends an empty part first.
void ZmqPublisher::serve_replays() {
  for (auto parts = replays_->receive(); !parts.empty(); parts = replays_->receive()) {
    if (parts.size() != 3 || parts[2].size() != sizeof(uint64_t)) {
      log::debug("KV events: a request for a replay that is none");
      continue;
    }
    std::vector<EventBatch> batches;
    {
      std::lock_guard lock(mutex_);
      batches = buffer_.since(from_big_endian(parts[2]));
    }
    const std::string_view client = parts[0];
    const auto sent = [&](const EventBatch& batch) {
      const std::string sequence = big_endian(batch.sequence);
      return replays_->send(std::array<std::string_view, 3>{client, "", sequence}, batch.payload);
    };
    if (!std::ranges::all_of(batches, sent)) continue;
    replays_->send(std::array<std::string_view, 4>{client, "", big_endian(kEndOfReplay), ""});
  }
}

}  // namespace millrace::worker
