// SPDX-License-Identifier: Apache-2.0
// KV cache events over ZeroMQ as vLLM's engines send them (docs/kv-events.md): a PUB endpoint with
// messages of topic, sequence number (8 bytes, big-endian) and payload, and a ROUTER endpoint that
// resends the kept messages from a requested number on.
//
// The caller encodes events; a thread of the publisher sends them. A subscriber that does not keep
// up loses messages, and notices by their numbers. Memory is bounded: by the options' buffer, and
// by kMaxQueued messages for each subscriber.
//
// AllBlocksCleared goes first, followed by what the group has cached from its start on. Both are
// sent again to all when somebody subscribes before anything else has been published, since a
// subscriber that reconnects to a restarted group has missed the first ones.
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
  // Most messages, of up to 85 KB each (HeldPages::kMaxStored), that wait for one subscriber.
  static constexpr int kMaxQueued = 1000;

  // Starts to listen. kIo, with the endpoint: it cannot be had.
  static Result<std::unique_ptr<ZmqPublisher>> open(const ZmqPublisherOptions& options);
  ZmqPublisher(const ZmqPublisher&) = delete;
  ZmqPublisher& operator=(const ZmqPublisher&) = delete;
  // Messages that are not sent yet are lost.
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
  // Called under the lock.
  void add(const Payload& payload) { unsent_.push_back(buffer_.add(payload)); }
  // On the publisher's thread:
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
  bool at_start_ = true;            // only the start has been published so far
  std::vector<Payload> start_;      // kept while at_start_

  std::thread thread_;
};

}  // namespace millrace::worker
