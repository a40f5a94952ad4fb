#include "coordinator/disconnect_watch.h"

#include <sys/socket.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <cerrno>

namespace millrace::coordinator {

namespace {

bool hung_up(int descriptor) {
  char byte = 0;
  const ssize_t got = ::recv(descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) return false;
  return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

DisconnectWatch::DisconnectWatch(tcp::socket& socket, Notifier& notifier) {
  socket.async_wait(tcp::socket::wait_read,
                    asio::bind_cancellation_slot(
                        state_->cancel.slot(), [state = state_, &socket, &notifier](error_code) {
                          // After the watch has ended, socket and notifier may be gone.
                          if (state->stopped) return;
                          state->gone = !socket.is_open() || hung_up(socket.native_handle());
                          if (state->gone) notifier.notify();
                        }));
}

DisconnectWatch::~DisconnectWatch() {
  state_->stopped = true;
  state_->cancel.emit(asio::cancellation_type::total);
}

}  // namespace millrace::coordinator
