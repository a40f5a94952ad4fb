// SPDX-License-Identifier: Apache-2.0
#include "comm/net/reader_threads.h"

#include <exception>
#include <utility>

#include "common/log.h"

namespace millrace::comm {

ReaderThreads::ReaderThreads(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

void ReaderThreads::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  came_.notify_one();
}

void ReaderThreads::stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
    came_.notify_all();
  }
  for (auto& thread : std::exchange(threads_, {})) thread.join();
}

void ReaderThreads::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    came_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    try {
      task();
      task = nullptr;  // frees what it holds outside the lock
    } catch (const std::exception& why) {
      // The task's client waits no longer than its own deadline.
      if (const auto times = thrown_line_.due()) {
        log::error("a reader of pages fails: {}{}", why.what(), PacedLine::others(*times));
      }
    }
    lock.lock();
  }
}

}  // namespace millrace::comm
