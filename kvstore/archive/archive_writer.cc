// SPDX-License-Identifier: Apache-2.0
#include "kvstore/archive/archive_writer.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <variant>

namespace millrace::kvstore {

namespace {

// How often the clock is looked at: it may not be the one by which threads wait.
constexpr Duration kPoll = std::chrono::milliseconds(5);

}  // namespace

// Shared by the thread and whoever waits for it; destroyed with the last of them.
struct ArchiveWriter::Shared {
  using Task = std::variant<Column, Touches>;
  Result<void> write(const Task& task) const;
  Result<void> save(const Column& column) const;

  std::shared_ptr<PrefixArchive> archive;

  mutable std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex:
  std::deque<Task> tasks;  // the first is being written
  std::optional<Error> failure;
  std::vector<PageContentKey> unsaved;
  // Nobody waits for the thread any more. Set under the mutex.
  std::atomic<bool> left = false;
};

Result<void> ArchiveWriter::Shared::write(const Task& task) const {
  if (const auto* column = std::get_if<Column>(&task)) return save(*column);
  for (const auto& [key, sequence] : std::get<Touches>(task)) {
    if (!left.load()) archive->touch(key, sequence);
  }
  return {};
}

Result<void> ArchiveWriter::Shared::save(const Column& column) const {
  const auto page_bytes = column.pages.bytes() / std::ssize(column.checksums);
  return archive->save({.key = column.key,
                        .page = column.page,
                        .sequence = column.sequence,
                        .digests = column.digests,
                        .checksums = column.checksums},
                       [&](int64_t row) -> Result<std::span<const std::byte>> {
                         if (left.load()) {
                           return error(Errc::kDeadlineExceeded, "writing kept pages was left");
                         }
                         return std::span(column.pages.as<std::byte>() + row * page_bytes,
                                          static_cast<size_t>(page_bytes));
                       });
}

ArchiveWriter::ArchiveWriter(std::shared_ptr<PrefixArchive> archive)
    : shared_(std::make_shared<Shared>()) {
  shared_->archive = std::move(archive);
  thread_ = std::thread([shared = shared_] { write_all(*shared); });
}

ArchiveWriter::~ArchiveWriter() {
  std::unique_lock lock(shared_->mutex);
  shared_->left.store(true);
  shared_->changed.notify_all();
  const bool is_writing = !shared_->tasks.empty();
  lock.unlock();
  is_writing ? thread_.detach() : thread_.join();
}

void ArchiveWriter::save(Column column) {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.emplace_back(std::move(column));
  shared_->changed.notify_all();
}

void ArchiveWriter::touch(Touches touches) {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.emplace_back(std::move(touches));
  shared_->changed.notify_all();
}

bool ArchiveWriter::wait(const Clock& clock, TimePoint until) {
  std::unique_lock lock(shared_->mutex);
  while (!shared_->tasks.empty()) {
    const auto left = until - clock.now();
    if (left <= Duration::zero()) return false;
    shared_->changed.wait_for(lock, std::min(kPoll, left));
  }
  return true;
}

std::vector<PageContentKey> ArchiveWriter::waiting() const {
  std::vector<PageContentKey> keys;
  const std::lock_guard lock(shared_->mutex);
  for (const auto& task : shared_->tasks) {
    if (const auto* column = std::get_if<Column>(&task)) keys.push_back(column->key);
  }
  return keys;
}

std::vector<PageContentKey> ArchiveWriter::take_unsaved() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->unsaved, {});
}

std::optional<Error> ArchiveWriter::take_failure() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->failure, std::nullopt);
}

// A task stays in the queue while it is written: it is done when it is gone.
void ArchiveWriter::write_all(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  for (;;) {
    shared.changed.wait(lock, [&] { return shared.left.load() || !shared.tasks.empty(); });
    if (shared.left.load()) break;
    const auto& task = shared.tasks.front();
    lock.unlock();
    auto written = shared.write(task);
    const auto* column = std::get_if<Column>(&task);
    const bool is_unsaved = column != nullptr && !shared.archive->contains(column->key);
    lock.lock();
    if (is_unsaved) shared.unsaved.push_back(column->key);
    if (!written.ok()) shared.failure = std::move(written).error();
    shared.tasks.pop_front();
    shared.changed.notify_all();
  }
  // The files are free only once nobody reads them either; whoever opens them waits for that.
  const auto archive = std::move(shared.archive);
}

}  // namespace millrace::kvstore
