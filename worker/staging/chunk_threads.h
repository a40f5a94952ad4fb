// Threads that share out the chunks of one piece of work after another.
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

// One caller at a time.
class ChunkThreads {
 public:
  // Does one chunk, on the thread of that number.
  using Work = std::function<Result<void>(int thread, int64_t chunk)>;

  // Without threads begin() does all the work, as thread 0.
  explicit ChunkThreads(int num_threads);
  // Gives up.
  ~ChunkThreads();
  ChunkThreads(const ChunkThreads&) = delete;
  ChunkThreads& operator=(const ChunkThreads&) = delete;

  bool any() const { return !threads_.empty(); }
  // Chunks [0, num_chunks), each on some thread. What was begun before must be through, or given up.
  void begin(int64_t num_chunks, Work work);
  // Until every chunk is done, or one has failed and nobody is at work: that failure.
  // kDeadlineExceeded: some still are.
  Result<void> wait(Deadline deadline);
  // No further chunk is worth its work: returns once nobody is at work.
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

  Work work_;  // while anybody is at work
  int64_t num_chunks_ = 0;
  std::atomic<int64_t> next_chunk_ = 0;
  std::vector<std::jthread> threads_;  // last: they end first
};

}  // namespace millrace::worker
