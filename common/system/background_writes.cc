// SPDX-License-Identifier: Apache-2.0
#include "common/system/background_writes.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace millrace {

// Shared by the thread and whoever waits for it; destroyed with the last of them.
struct BackgroundWrites::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex:
  std::deque<Write> writes;  // the first is being done
  std::optional<Error> failure;
  bool has_failed = false;
  bool left = false;  // nobody adds more
};

BackgroundWrites::BackgroundWrites() : shared_(std::make_shared<Shared>()) {
  thread_ = std::thread([shared = shared_] { run(*shared); });
}

BackgroundWrites::~BackgroundWrites() {
  std::unique_lock lock(shared_->mutex);
  shared_->left = true;
  shared_->changed.notify_all();
  const bool is_done =
      shared_->changed.wait_for(lock, kPatience, [this] { return shared_->writes.empty(); });
  // Writes behind one that hangs are not begun.
  if (!is_done) shared_->writes.resize(1);
  lock.unlock();
  is_done ? thread_.join() : thread_.detach();
}

bool BackgroundWrites::add(Write write) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->has_failed) return true;
  if (shared_->writes.size() >= kMostWaiting) return false;
  shared_->writes.push_back(std::move(write));
  shared_->changed.notify_all();
  return true;
}

std::optional<Error> BackgroundWrites::take_failure() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->failure, std::nullopt);
}

// A write stays in the queue while it is done: it is over when it is gone.
void BackgroundWrites::run(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  for (;;) {
    shared.changed.wait(lock, [&] { return shared.left || !shared.writes.empty(); });
    if (shared.writes.empty()) return;
    const Write& write = shared.writes.front();
    lock.unlock();
    auto written = write();
    lock.lock();
    shared.writes.pop_front();
    if (!written.ok()) {
      shared.failure = std::move(written).error();
      shared.has_failed = true;
      shared.writes.clear();
    }
    shared.changed.notify_all();
  }
}

}  // namespace millrace
