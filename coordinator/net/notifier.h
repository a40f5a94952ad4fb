// SPDX-License-Identifier: Apache-2.0
// Wakes one waiting coroutine. All calls on one thread; a notification between two waits is not
// lost.
#pragma once

#include <utility>

#include "common/clock.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

class Notifier {
 public:
  explicit Notifier(const asio::any_io_executor& executor) : timer_(executor) {}

  void notify() {
    notified_ = true;
    timer_.cancel();
  }

  // True when notified, false when the deadline has passed.
  awaitable<bool> wait(Deadline deadline) {
    if (!notified_) {
      timer_.expires_at(deadline.when());
      co_await timer_.async_wait(kAwait);
    }
    co_return std::exchange(notified_, false);
  }

 private:
  asio::steady_timer timer_;
  bool notified_ = false;
};

}  // namespace millrace::coordinator
