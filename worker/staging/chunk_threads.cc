// SPDX-License-Identifier: Apache-2.0
#include "worker/staging/chunk_threads.h"

#include <exception>
#include <utility>

namespace millrace::worker {

ChunkThreads::ChunkThreads(int num_threads) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this, i](const std::stop_token& stop) { run(stop, i); });
  }
}

ChunkThreads::~ChunkThreads() {
  give_up();
}

void ChunkThreads::begin(int64_t num_chunks, Work work) {
  std::unique_lock lock(mutex_);
  work_ = std::move(work);
  num_chunks_ = num_chunks;
  next_chunk_ = 0;
  failure_.reset();
  if (threads_.empty()) {
    lock.unlock();
    return do_chunks(0);
  }
  ++num_begun_;
  num_working_ = static_cast<int>(threads_.size());
  changed_.notify_all();
}

// Threads notice it at their next chunk.
void ChunkThreads::give_up() {
  std::unique_lock lock(mutex_);
  next_chunk_ = num_chunks_;
  changed_.wait(lock, [&] { return num_working_ == 0; });
}

Result<void> ChunkThreads::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.when(), [&] { return num_working_ == 0; })) {
    return error(Errc::kDeadlineExceeded, "{} of {} threads are still at work", num_working_,
                 threads_.size());
  }
  if (failure_) return *failure_;
  return {};
}

void ChunkThreads::run(const std::stop_token& stop, int number) {
  int64_t num_done = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return num_begun_ > num_done; })) return;
      num_done = num_begun_;
    }
    do_chunks(number);
    const std::lock_guard lock(mutex_);
    --num_working_;
    changed_.notify_all();
  }
}

void ChunkThreads::do_chunks(int number) {
  try {
    while (true) {
      const int64_t chunk = next_chunk_.fetch_add(1);
      if (chunk >= num_chunks_) return;
      const auto done = work_(number, chunk);
      if (!done.ok()) return fail(done.error());
    }
  } catch (const std::exception& e) {  // a GPU that failed; the engine's thread will see it too
    fail(Error(Errc::kInternal, e.what()));
  }
}

// Keeps the first failure; no thread begins another chunk.
void ChunkThreads::fail(Error error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  next_chunk_ = num_chunks_;
}

}  // namespace millrace::worker
