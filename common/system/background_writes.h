// SPDX-License-Identifier: Apache-2.0
// Writes to a file on a thread of their own, one after the other, so that a disk that hangs holds
// up nobody else.
//
// Few writes may wait at a time: if the disk does not keep up, or hangs, writes that come meanwhile
// are lost. The destructor waits for the remaining writes for kPatience; a write that hangs then is
// left to the system.
//
// Threads: used by one thread, besides its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "common/result.h"

namespace millrace {

class BackgroundWrites {
 public:
  // Owns all that it touches: it may outlive this object.
  using Write = std::function<Result<void>()>;

  static constexpr size_t kMostWaiting = 64;
  static constexpr Duration kPatience = std::chrono::seconds(1);

  BackgroundWrites();
  ~BackgroundWrites();
  BackgroundWrites(const BackgroundWrites&) = delete;
  BackgroundWrites& operator=(const BackgroundWrites&) = delete;

  // False: too many wait, and this one is dropped. After a failed write no other is begun.
  bool add(Write write);
  // The failure that ended the writing; returned once.
  std::optional<Error> take_failure();

 private:
  struct Shared;
  static void run(Shared& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace millrace
