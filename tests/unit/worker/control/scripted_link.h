// SPDX-License-Identifier: Apache-2.0
// A coordinator in memory. A test pushes the coordinator's messages and waits for the group's
// answers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "worker/control/control_inbox.h"
#include "worker/control/control_link.h"

namespace millrace::test {

class ScriptedLink final : public worker::ControlLink {
 public:
  using Body = protocol::Envelope::BodyCase;

  void push(protocol::Envelope envelope) {
    inbox_.push({.kind = worker::ControlEvent::Kind::kMessage, .message = std::move(envelope)});
  }
  void push(worker::ControlEvent event) { inbox_.push(std::move(event)); }
  void push(worker::ControlEvent::Kind kind, std::string why = "") {
    inbox_.push({.kind = kind, .why = std::move(why)});
  }

  // From here on, the group no longer waits for more to do. For a test that is over.
  void hurry() {
    hurried_ = true;
    push(worker::ControlEvent::Kind::kConnected);
  }

  // Called for every message of the group, on the group's thread and before the group goes on: the
  // group finds what it pushes when it looks next. Set it before the group starts.
  void set_on_send(std::function<void(const protocol::Envelope&)> on_send) {
    on_send_ = std::move(on_send);
  }

  std::optional<worker::ControlEvent> wait(Deadline deadline) override {
    auto event = inbox_.wait(hurried_ ? Deadline::after(Duration::zero()) : deadline);
    if (!event.has_value()) {
      const std::lock_guard lock(mutex_);
      ++num_idle_waits_;
      changed_.notify_all();
    }
    return event;
  }
  // Waits until the group has waited this many times and nothing came; false after a minute.
  bool wait_for_idle_waits(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return num_idle_waits_ >= count; });
  }
  Result<void> send(const protocol::Envelope& envelope) override {
    if (on_send_) on_send_(envelope);
    {
      const std::lock_guard lock(mutex_);
      sent_.push_back(envelope);
    }
    changed_.notify_all();
    return {};
  }

  // The next message of this kind, after the one that the last call returned; messages in between
  // are skipped. None after a minute, which happens only with a bug.
  std::optional<protocol::Envelope> wait_for(Body body) {
    std::unique_lock lock(mutex_);
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    while (true) {
      for (; next_ < sent_.size(); ++next_) {
        if (sent_[next_].body_case() == body) return sent_[next_++];
      }
      if (changed_.wait_until(lock, deadline.when()) == std::cv_status::timeout) return {};
    }
  }
  std::vector<protocol::Envelope> sent() const {
    const std::lock_guard lock(mutex_);
    return sent_;
  }

 private:
  worker::ControlInbox inbox_;
  std::atomic<bool> hurried_ = false;
  std::function<void(const protocol::Envelope&)> on_send_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<protocol::Envelope> sent_;
  size_t next_ = 0;
  int num_idle_waits_ = 0;
};

}  // namespace millrace::test
