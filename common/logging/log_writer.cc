// SPDX-License-Identifier: Apache-2.0
#include "common/logging/log_writer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace millrace {

namespace {

constexpr std::chrono::seconds kLastWords{1};
// How often the thread looks whether it should end while a descriptor that does not block is full.
constexpr int kPollMs = 100;

}  // namespace

// Shared with the thread, which may outlive the writer.
struct LogWriter::State {
  State(int fd, size_t most, std::atomic<int64_t>* counter)
      : descriptor(fd), max_bytes(most), left_out(counter) {}

  void run();
  void append(std::string_view line);
  void count(int64_t num_lines);
  // False if they cannot be written any more.
  bool write_all(std::string_view lines);

  const int descriptor;
  const size_t max_bytes;
  std::atomic<int64_t>* const left_out;

  std::mutex mutex;
  std::condition_variable came, written;
  std::string waiting;
  std::string gap_line;  // what will say that lines were left out
  size_t writing_bytes = 0;
  int64_t num_missing = 0;  // lines left out that no line has told of
  std::atomic<bool> stopping = false;
  bool ended = false;
};

void LogWriter::State::count(int64_t num_lines) {
  if (left_out != nullptr) left_out->fetch_add(num_lines);
}

void LogWriter::State::append(std::string_view line) {
  waiting += line;
  came.notify_one();
}

void LogWriter::State::run() {
  std::unique_lock lock(mutex);
  while (true) {
    came.wait(lock, [this] { return stopping || !waiting.empty() || !gap_line.empty(); });
    if (waiting.empty() && gap_line.empty()) break;  // stopping
    // Missing lines are younger than all that wait.
    waiting += std::exchange(gap_line, {});
    num_missing = 0;
    const std::string lines = std::exchange(waiting, {});
    writing_bytes = lines.size();
    lock.unlock();
    const bool done = write_all(lines);
    if (!done) count(std::count(lines.begin(), lines.end(), '\n'));
    lock.lock();
    writing_bytes = 0;
    written.notify_all();
  }
  ended = true;
  written.notify_all();
}

bool LogWriter::State::write_all(std::string_view lines) {
  while (!lines.empty()) {
    const ssize_t count = ::write(descriptor, lines.data(), lines.size());
    if (count > 0) {
      lines.remove_prefix(static_cast<size_t>(count));
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    const bool full = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (!full || stopping) return false;
    pollfd room{.fd = descriptor, .events = POLLOUT, .revents = 0};
    (void)::poll(&room, 1, kPollMs);
  }
  return true;
}

LogWriter::LogWriter(int descriptor, size_t max_bytes, std::atomic<int64_t>* left_out)
    : state_(std::make_shared<State>(descriptor, max_bytes, left_out)),
      thread_([state = state_] { state->run(); }) {}

LogWriter::~LogWriter() {
  flush(Deadline::after(kLastWords));
  bool ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->came.notify_one();
    // A thread that has nothing to write ends at once.
    if (state_->writing_bytes == 0) {
      state_->written.wait(lock, [this] { return state_->ended || state_->writing_bytes > 0; });
    }
    ended = state_->ended;
  }
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void LogWriter::write(std::string line, const Gap& gap) {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  if (state.waiting.size() + state.writing_bytes + line.size() > state.max_bytes) {
    state.count(1);
    state.gap_line = gap(++state.num_missing);
    return;
  }
  // Stands before the first line that found room again.
  if (!state.gap_line.empty()) {
    state.waiting += std::exchange(state.gap_line, {});
    state.num_missing = 0;
  }
  state.append(line);
}

bool LogWriter::flush(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->written.wait_until(lock, deadline.when(), [this] {
    return state_->ended ||
           (state_->writing_bytes == 0 && state_->waiting.empty() && state_->gap_line.empty());
  });
}

}  // namespace millrace
