// SPDX-License-Identifier: Apache-2.0
// Receives a group's KV cache events in a test.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/events/event_publisher.h"
#include "worker/group/group_rank.h"

namespace millrace::test {

// For one group after another. It is held by a std::shared_ptr, because a group may outlive its
// test.
class EventRecorder : public std::enable_shared_from_this<EventRecorder> {
 public:
  // All events since the last call.
  std::vector<worker::KvEvent> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }
  // Events published at starts.
  std::vector<worker::KvEvent> take_start() {
    std::lock_guard lock(mutex_);
    return std::exchange(start_, {});
  }

  worker::OpenEvents opener() {
    return [recorder = shared_from_this()]() -> Result<std::unique_ptr<worker::EventPublisher>> {
      return std::unique_ptr<worker::EventPublisher>(std::make_unique<Publisher>(recorder));
    };
  }

 private:
  class Publisher final : public worker::EventPublisher {
   public:
    explicit Publisher(std::shared_ptr<EventRecorder> recorder) : recorder_(std::move(recorder)) {}
    void publish(std::vector<worker::KvEvent> events) override {
      recorder_->add(recorder_->events_, events);
    }
    void publish_start(std::vector<worker::KvEvent> events) override {
      recorder_->add(recorder_->start_, events);
    }

   private:
    const std::shared_ptr<EventRecorder> recorder_;
  };

  void add(std::vector<worker::KvEvent>& all, const std::vector<worker::KvEvent>& events) {
    std::lock_guard lock(mutex_);
    all.insert(all.end(), events.begin(), events.end());
  }

  std::mutex mutex_;
  std::vector<worker::KvEvent> events_;
  std::vector<worker::KvEvent> start_;
};

}  // namespace millrace::test
