// SPDX-License-Identifier: Apache-2.0
// A ZeroMQ context and a socket. Both are owned and closed at once, with whatever is still to be
// sent. A socket belongs to one thread at a time.
#pragma once

#include <zmq.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace millrace::worker {

using ZmqContext = std::unique_ptr<void, int (*)(void*)>;

// kInternal where the system has no memory or file descriptors for it.
Result<ZmqContext> make_zmq_context();

class ZmqSocket {
 public:
  // The context outlives it. `max_queued`: messages that wait for a peer, in each direction.
  static Result<ZmqSocket> open(void* context, int type, int max_queued);

  // kIo, with the endpoint and the reason.
  Result<void> bind(const std::string& endpoint);
  Result<void> set(int option, int value);
  // Sends a message of these parts. The last part, if given, is `shared`, which is not copied. Does
  // not wait; false: not sent, because the peer is gone or its queue is full.
  bool send(std::span<const std::string_view> parts,
            const std::shared_ptr<const std::vector<std::byte>>& shared = nullptr);
  // The parts of a message that has arrived; empty: there is none.
  std::vector<std::string> receive();
  void* get() const { return socket_.get(); }

 private:
  explicit ZmqSocket(void* socket) : socket_(socket, zmq_close) {}

  std::unique_ptr<void, int (*)(void*)> socket_;
};

}  // namespace millrace::worker
