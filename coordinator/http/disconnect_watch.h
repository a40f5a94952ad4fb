// SPDX-License-Identifier: Apache-2.0
// Notices that the client of a long request has hung up, while nothing is being read from it.
#pragma once

#include <boost/asio/cancellation_signal.hpp>
#include <memory>

#include "common/net/net_stream.h"
#include "coordinator/net/notifier.h"

namespace millrace::coordinator {

class DisconnectWatch {
 public:
  // Wakes `notifier` when the peer closes its side, and again when the connection breaks. Stops
  // watching if the client sends its next request meanwhile. With TLS, what a client sends may be
  // its next request or the end of the connection, so after that it is checked once a second.
  DisconnectWatch(NetStream& stream, Notifier& notifier);
  ~DisconnectWatch();
  DisconnectWatch(const DisconnectWatch&) = delete;
  DisconnectWatch& operator=(const DisconnectWatch&) = delete;

  // The peer sends no more; it may have left or may still listen.
  bool half_closed() const { return state_->half_closed; }
  bool gone() const { return state_->gone; }

 private:
  // Outlives the watch until the wait has been cancelled.
  struct State {
    NetStream& stream;  // both may be used until `stopped`
    Notifier& notifier;
    bool stopped = false;
    bool half_closed = false;
    bool gone = false;
    bool unread = false;
    asio::steady_timer pause;
    asio::cancellation_signal cancel;
  };

  static void wait(const std::shared_ptr<State>& state);
  static void look(const std::shared_ptr<State>& state);
  static void see(State& state);

  std::shared_ptr<State> state_;
};

}  // namespace millrace::coordinator
