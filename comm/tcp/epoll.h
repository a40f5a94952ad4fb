// SPDX-License-Identifier: Apache-2.0
// Lets a thread wait for watched descriptors and for wake() from other threads.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <span>

#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace::comm {

class Epoll {
 public:
  // The id of events that wake() makes; no watched descriptor has it.
  static constexpr uint64_t kWakeId = 0;

  static Result<Epoll> create();

  // The events are the epoll(7) ones, level-triggered. kIo.
  Result<void> add(int descriptor, uint64_t id, uint32_t events) const;
  Result<void> change(int descriptor, uint64_t id, uint32_t events) const;
  void remove(int descriptor) const;
  // The events that have come, after `timeout_ms` at the latest (-1: no limit). Clears earlier
  // wake() calls.
  std::span<const epoll_event> wait(std::span<epoll_event> room, int timeout_ms) const;
  // Any thread.
  void wake() const;

 private:
  Epoll(FileDescriptor events, FileDescriptor woken)
      : events_(std::move(events)), woken_(std::move(woken)) {}
  Result<void> control(int operation, int descriptor, uint64_t id, uint32_t events) const;

  FileDescriptor events_, woken_;
};

}  // namespace millrace::comm
