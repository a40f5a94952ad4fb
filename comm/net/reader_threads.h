// SPDX-License-Identifier: Apache-2.0
// Threads of a server that wait for what a reply needs, such as a disk, so that the threads that
// answer do not. They take tasks in the order of arrival. A task that throws is logged and forgotten.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/logging/paced_line.h"

namespace millrace::comm {

class ReaderThreads {
 public:
  explicit ReaderThreads(int num_threads);
  ReaderThreads(const ReaderThreads&) = delete;
  ReaderThreads& operator=(const ReaderThreads&) = delete;
  ~ReaderThreads() { stop(); }

  // Any thread. The poster bounds how many tasks wait: a client has one call under way. Dropped
  // once stopped.
  void post(std::function<void()> task);
  // Waits for the tasks under way and drops the others.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  PacedLine thrown_line_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::comm
