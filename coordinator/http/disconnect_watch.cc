#include "coordinator/http/disconnect_watch.h"

#include <sys/socket.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <cerrno>

namespace millrace::coordinator {

DisconnectWatch::DisconnectWatch(tcp::socket& socket, Notifier& notifier)
    : state_(new State{.socket = socket, .notifier = notifier}) {
  wait(state_);
}

// For something to read, which is the next request or an end; after the end, for an error.
void DisconnectWatch::wait(const std::shared_ptr<State>& state) {
  const auto what = state->half_closed ? tcp::socket::wait_error : tcp::socket::wait_read;
  state->socket.async_wait(what,
                           asio::bind_cancellation_slot(state->cancel.slot(), [state](error_code) {
                             if (state->stopped) return;
                             const bool was_half_closed = state->half_closed;
                             look(*state);
                             if (state->half_closed || state->gone) state->notifier.notify();
                             if (state->half_closed && !was_half_closed && !state->gone)
                               wait(state);
                           }));
}

void DisconnectWatch::look(State& state) {
  if (!state.socket.is_open()) {
    state.gone = true;
    return;
  }
  char byte = 0;
  const ssize_t got = ::recv(state.socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) return;
  if (got == 0) {
    state.gone = state.half_closed;  // woken for an error that has been told already
    state.half_closed = true;
    return;
  }
  state.gone = errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
}

DisconnectWatch::~DisconnectWatch() {
  state_->stopped = true;
  state_->cancel.emit(asio::cancellation_type::total);
}

}  // namespace millrace::coordinator
