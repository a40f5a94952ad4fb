// KV cache events over ZeroMQ as vLLM's engines send them (docs/kv-events.md): a PUB endpoint with
// messages of topic, sequence number (8 bytes, big-endian) and payload, and a ROUTER endpoint that sends
// kept ones again to who asks for all from a number on.
//
// Events are encoded by who calls; a thread of the publisher sends them. A subscriber that does not keep
// up loses messages and sees so by their numbers. Memory is bounded: by the options' buffer, and by
// kMaxQueued messages for each subscriber.
//
// AllBlocksCleared goes first, and behind it what the group has cached from its start on; and both again to all when somebody
// subscribes before anything else has been published, since a subscriber that reconnects to a restarted group has missed the first.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/result.h"
#include "worker/events/batch_buffer.h"
#include "worker/events/event_publisher.h"
#include "worker/events/zmq/zmq_socket.h"

namespace millrace::worker {

struct ZmqPublisherOptions {
  std::string endpoint;  // "tcp://127.0.0.1:5557"; "tcp://*:5557": all interfaces; "ipc://PATH"
  std::string replay_endpoint;  // empty: none
  std::string topic;
  int64_t buffer_batches = 10'000;  // kept for replays
  int64_t buffer_bytes = int64_t{64} << 20;
};

class ZmqPublisher final : public EventPublisher {
 public:
  // Messages of 85 KB at most (HeldPages::kMaxStored) that wait for one subscriber.
  static constexpr int kMaxQueued = 1000;

  // Listens. kIo: an endpoint cannot be had; it is named.
  static Result<std::unique_ptr<ZmqPublisher>> open(const ZmqPublisherOptions& options);
  ZmqPublisher(const ZmqPublisher&) = delete;
  ZmqPublisher& operator=(const ZmqPublisher&) = delete;
  // What is not sent yet is lost.
  ~ZmqPublisher() override;

  // Each event is a batch of its own. Any thread.
  void publish(std::vector<KvEvent> events) override;
  // Batches of up to HeldPages::kMaxStored blocks.
  void publish_start(std::vector<KvEvent> events) override;

 private:
  ZmqPublisher(const ZmqPublisherOptions& options, ZmqContext context, ZmqSocket events);

  using Payload = std::shared_ptr<const std::vector<std::byte>>;

  Result<void> start();
  void wake();
  // Under the lock.
  void add(const Payload& payload) { unsent_.push_back(buffer_.add(payload)); }
  // The thread's.
  void run();
  void send_new();
  void read_subscriptions();
  void serve_replays();

  const ZmqPublisherOptions options_;
  ZmqContext context_;  // outlives its sockets
  ZmqSocket events_;
  std::unique_ptr<ZmqSocket> replays_;
  int wake_fd_ = -1;
  std::atomic<bool> stop_ = false;

  std::mutex mutex_;
  BatchBuffer buffer_;
  std::vector<EventBatch> unsent_;  // what publish() leaves for the thread
  bool at_start_ = true;            // nothing but the start has been published
  std::vector<Payload> start_;      // until then

  std::thread thread_;
};

}  // namespace millrace::worker
