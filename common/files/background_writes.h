// Writes of a file on a thread of their own, one after the other, so that a disk that hangs holds up nobody else.
//
// Few wait at a time: a disk that does not keep up, or hangs, costs those that come meanwhile. Who ends in good order
// waits for what is left for kPatience; a write that hangs then is left to the system.
//
// Threads: one; its own is behind it.
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
  // Holds all that it touches: it may outlive this object.
  using Write = std::function<Result<void>()>;

  static constexpr size_t kMostWaiting = 64;
  static constexpr Duration kPatience = std::chrono::seconds(1);

  BackgroundWrites();
  ~BackgroundWrites();
  BackgroundWrites(const BackgroundWrites&) = delete;
  BackgroundWrites& operator=(const BackgroundWrites&) = delete;

  // False: too many wait, and this one is dropped. After one that has failed none is begun.
  bool add(Write write);
  // What has ended the writing, once.
  std::optional<Error> take_failure();

 private:
  struct Shared;
  static void run(Shared& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace millrace
