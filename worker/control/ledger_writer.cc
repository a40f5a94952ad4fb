#include "worker/control/ledger_writer.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace millrace::worker {

struct LedgerWriter::Task {
  LedgerRecord record;
  bool is_whole = false;
};

// Of the thread and of who waits for it; goes with the last of them.
struct LedgerWriter::Shared {
  explicit Shared(LedgerFile ledger) : file(std::move(ledger)) {}

  LedgerFile file;  // the thread's

  mutable std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex:
  std::deque<Task> tasks;  // the first is being written
  std::optional<Error> failure;
  bool has_failed = false;  // nothing more is written
  bool is_long = false;
  bool left = false;  // nobody adds any more
};

LedgerWriter::LedgerWriter(LedgerFile file) : shared_(std::make_shared<Shared>(std::move(file))) {
  thread_ = std::thread([shared = shared_] { write_all(*shared); });
}

LedgerWriter::~LedgerWriter() {
  std::unique_lock lock(shared_->mutex);
  shared_->left = true;
  shared_->changed.notify_all();
  const bool is_done =
      shared_->changed.wait_for(lock, kPatience, [this] { return shared_->tasks.empty(); });
  // What waits behind a write that hangs is not begun.
  if (!is_done) shared_->tasks.resize(1);
  lock.unlock();
  is_done ? thread_.join() : thread_.detach();
}

bool LedgerWriter::add(Task task) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->has_failed) return true;
  if (shared_->tasks.size() >= kMostWaiting) return false;
  shared_->tasks.push_back(std::move(task));
  shared_->changed.notify_all();
  return true;
}

bool LedgerWriter::append(LedgerRecord record) {
  return add({.record = std::move(record)});
}

bool LedgerWriter::replace(LedgerRecord record) {
  return add({.record = std::move(record), .is_whole = true});
}

bool LedgerWriter::is_long() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->is_long && std::ranges::none_of(shared_->tasks, &Task::is_whole);
}

std::optional<Error> LedgerWriter::take_failure() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->failure, std::nullopt);
}

// A task stays where it is while it is written: it is done when it is gone.
void LedgerWriter::write_all(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  for (;;) {
    shared.changed.wait(lock, [&] { return shared.left || !shared.tasks.empty(); });
    if (shared.tasks.empty()) return;
    const Task& task = shared.tasks.front();
    lock.unlock();
    auto written =
        task.is_whole ? shared.file.replace(task.record) : shared.file.append(task.record);
    lock.lock();
    shared.is_long = shared.file.is_long();
    shared.tasks.pop_front();
    if (!written.ok()) {
      shared.failure = std::move(written).error();
      shared.has_failed = true;
      shared.tasks.clear();
    }
    shared.changed.notify_all();
  }
}

}  // namespace millrace::worker
