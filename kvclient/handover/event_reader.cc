// SPDX-License-Identifier: Apache-2.0
#include "kvclient/handover/event_reader.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace millrace::kvclient {

namespace {

Error system_error(const char* what) {
  return error(Errc::kIo, "{}: {}", what, std::generic_category().message(errno));
}

}  // namespace

Result<std::unique_ptr<EventReader>> EventReader::start(int input, HandoverFeed& feed) {
  const int stop = ::eventfd(0, EFD_CLOEXEC);
  if (stop < 0) return system_error("eventfd");
  return std::unique_ptr<EventReader>(new EventReader(input, stop, feed));
}

EventReader::~EventReader() {
  // Cannot fail: the counter is far from its limit.
  (void)::eventfd_write(stop_, 1);
  thread_.join();
  ::close(stop_);
}

void EventReader::run() {
  const auto done = read();
  feed_.fail(done.ok() ? Error(Errc::kPeerLost, "the events ended before the prefill was done")
                       : done.error());
}

// Waits without a deadline: those who wait for the result have deadlines of their own, and the
// destructor's signal ends this wait.
Result<void> EventReader::read() {
  std::array<char, 65536> buffer;
  while (!feed_.ended()) {
    std::array<pollfd, 2> waiting = {{{.fd = input_, .events = POLLIN, .revents = 0},
                                      {.fd = stop_, .events = POLLIN, .revents = 0}}};
    if (::poll(waiting.data(), waiting.size(), /*timeout=*/-1) < 0) {
      if (errno == EINTR) continue;
      return system_error("poll of the events");
    }
    if (waiting[1].revents != 0) return {};
    const ssize_t got = ::read(input_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("read of the events");
    if (got == 0) return {};
    feed_.write({buffer.data(), static_cast<size_t>(got)});
  }
  return {};
}

}  // namespace millrace::kvclient
