// SPDX-License-Identifier: Apache-2.0
// Threads that share the chunks of a piece of work, for one piece of work after another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::worker {

// Used by one thread at a time.
class ChunkThreads {
 public:
  // Does one chunk, on thread number `thread`.
  using Work = std::function<Result<void>(int thread, int64_t chunk)>;

  // Without threads begin() does all the work, as thread 0.
  explicit ChunkThreads(int num_threads);
  // Gives up.
  ~ChunkThreads();
  ChunkThreads(const ChunkThreads&) = delete;
  ChunkThreads& operator=(const ChunkThreads&) = delete;

  bool any() const { return !threads_.empty(); }
  // Begins chunks [0, num_chunks), each on some thread. The work before must have ended, or been
  // given up.
  void begin(int64_t num_chunks, Work work);
  // Waits until every chunk is done, or one has failed and no thread is at work; returns that
  // failure. kDeadlineExceeded: threads are still at work.
  Result<void> wait(Deadline deadline);
  // Begins no further chunk, and returns once no thread is at work.
  void give_up();

 private:
  void run(const std::stop_token& stop, int number);
  void do_chunks(int number);
  void fail(Error error);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  int64_t num_begun_ = 0;
  int num_working_ = 0;
  std::optional<Error> failure_;

  Work work_;  // in use while any thread is at work
  int64_t num_chunks_ = 0;
  std::atomic<int64_t> next_chunk_ = 0;
  std::vector<std::jthread> threads_;  // last: they end first
};

}  // namespace millrace::worker
