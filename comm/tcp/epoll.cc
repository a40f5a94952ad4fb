// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/epoll.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace millrace::comm {

Result<Epoll> Epoll::create() {
  FileDescriptor events(::epoll_create1(EPOLL_CLOEXEC));
  FileDescriptor woken(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!events.valid() || !woken.valid()) {
    return error(Errc::kIo, "epoll: {}", std::generic_category().message(errno));
  }
  Epoll made(std::move(events), std::move(woken));
  MR_RETURN_IF_ERROR(made.add(made.woken_.get(), kWakeId, EPOLLIN));
  return made;
}

Result<void> Epoll::add(int descriptor, uint64_t id, uint32_t events) const {
  return control(EPOLL_CTL_ADD, descriptor, id, events);
}

Result<void> Epoll::change(int descriptor, uint64_t id, uint32_t events) const {
  return control(EPOLL_CTL_MOD, descriptor, id, events);
}

void Epoll::remove(int descriptor) const {
  (void)::epoll_ctl(events_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

Result<void> Epoll::control(int operation, int descriptor, uint64_t id, uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(events_.get(), operation, descriptor, &event) == 0) return {};
  return error(Errc::kIo, "epoll_ctl: {}", std::generic_category().message(errno));
}

std::span<const epoll_event> Epoll::wait(std::span<epoll_event> room, int timeout_ms) const {
  const int count =
      ::epoll_wait(events_.get(), room.data(), static_cast<int>(room.size()), timeout_ms);
  const auto come = room.first(static_cast<size_t>(std::max(count, 0)));
  if (std::ranges::any_of(come, [](const auto& event) { return event.data.u64 == kWakeId; })) {
    eventfd_t words = 0;
    ::eventfd_read(woken_.get(), &words);
  }
  return come;
}

void Epoll::wake() const {
  ::eventfd_write(woken_.get(), 1);
}

}  // namespace millrace::comm
