// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/disconnect_watch.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <cerrno>

namespace millrace::coordinator {

namespace {

constexpr std::chrono::seconds kLookAgain{1};

}  // namespace

DisconnectWatch::DisconnectWatch(NetStream& stream, Notifier& notifier)
    : state_(new State{.stream = stream,
                       .notifier = notifier,
                       .pause = asio::steady_timer(stream.get_executor())}) {
  wait(state_);
}

// Waits for something to read: the next request or the end. After the end, waits for an error.
void DisconnectWatch::wait(const std::shared_ptr<State>& state) {
  auto woken = asio::bind_cancellation_slot(state->cancel.slot(), [state](error_code) {
    if (!state->stopped) look(state);
  });
  if (state->unread) {
    state->pause.expires_after(kLookAgain);
    return state->pause.async_wait(std::move(woken));
  }
  const auto what = state->half_closed ? tcp::socket::wait_error : tcp::socket::wait_read;
  state->stream.socket().async_wait(what, std::move(woken));
}

void DisconnectWatch::look(const std::shared_ptr<State>& state) {
  const bool was_half_closed = state->half_closed;
  see(*state);
  if (state->half_closed || state->gone) state->notifier.notify();
  if (state->gone) return;
  if (state->unread || (state->half_closed && !was_half_closed)) wait(state);
}

void DisconnectWatch::see(State& state) {
  if (!state.stream.socket().is_open()) {
    state.gone = true;
    return;
  }
  const int socket = state.stream.socket().native_handle();
  char byte = 0;
  const ssize_t got = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) {
    pollfd end{.fd = socket, .events = POLLRDHUP, .revents = 0};
    const bool ended = state.stream.encrypted() && ::poll(&end, 1, 0) > 0;
    state.unread = state.stream.encrypted() && !ended;
    state.half_closed = state.half_closed || ended;
    state.gone = ended && (end.revents & (POLLERR | POLLHUP)) != 0;
    return;
  }
  if (got == 0) {
    state.gone = state.half_closed;  // woken for an error that was already reported
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
