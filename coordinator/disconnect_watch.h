// Notices that the client of a long request has hung up, while nothing is being read from it.
#pragma once

#include <boost/asio/cancellation_signal.hpp>
#include <memory>

#include "coordinator/notifier.h"

namespace millrace::coordinator {

class DisconnectWatch {
 public:
  // Wakes `notifier` when the peer closes its side: a client that half-closes counts as gone, as
  // for nginx. A client that sends its next request meanwhile is watched no further.
  DisconnectWatch(tcp::socket& socket, Notifier& notifier);
  ~DisconnectWatch();
  DisconnectWatch(const DisconnectWatch&) = delete;
  DisconnectWatch& operator=(const DisconnectWatch&) = delete;

  bool gone() const { return state_->gone; }

 private:
  // Outlives the watch until the wait has been cancelled.
  struct State {
    bool stopped = false;
    bool gone = false;
    asio::cancellation_signal cancel;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace millrace::coordinator
