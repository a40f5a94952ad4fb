// SPDX-License-Identifier: Apache-2.0
// A queue of events from the client's thread to the engine's. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "worker/control/control_link.h"

namespace millrace::worker {

class ControlInbox {
 public:
  void push(ControlEvent event) {
    {
      std::lock_guard lock(mutex_);
      if (event.kind != ControlEvent::Kind::kMessage) state_ = event.kind;
      if (event.kind == ControlEvent::Kind::kRefused) refusal_ = event.why;
      events_.push_back(std::move(event));
    }
    changed_.notify_all();
  }

  // The next event; none if the deadline passes first.
  std::optional<ControlEvent> wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.when(), [this] { return !events_.empty(); });
    if (events_.empty()) return std::nullopt;
    std::optional<ControlEvent> event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  Result<void> wait_connected(Deadline deadline) {
    using Kind = ControlEvent::Kind;
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.when(),
                        [this] { return state_ == Kind::kConnected || state_ == Kind::kRefused; });
    if (state_ == Kind::kConnected) return {};
    if (state_ == Kind::kRefused) return Error(Errc::kUnavailable, refusal_);
    return Error(Errc::kDeadlineExceeded, "no coordinator has accepted this group");
  }

  bool connected() const {
    std::lock_guard lock(mutex_);
    return state_ == ControlEvent::Kind::kConnected;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ControlEvent> events_;
  ControlEvent::Kind state_ = ControlEvent::Kind::kDisconnected;
  std::string refusal_;
};

}  // namespace millrace::worker
