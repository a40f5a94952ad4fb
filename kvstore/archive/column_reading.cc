// SPDX-License-Identifier: Apache-2.0
#include "kvstore/archive/column_reading.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

namespace millrace::kvstore {

namespace {

// How often the clock is looked at: it may not be the one by which threads wait.
constexpr Duration kPoll = std::chrono::milliseconds(5);
// Columns waiting to be taken while the next one is read: more would waste memory.
constexpr size_t kMostReady = 1;

}  // namespace

// Shared by the thread and whoever waits for it; destroyed with the last of them.
struct ColumnReading::Shared {
  std::shared_ptr<PrefixArchive> archive;
  std::vector<PageContentKey> keys;
  std::shared_ptr<NumLeft> num_left;

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex:
  std::deque<Result<Column>> ready;
  bool done = false;  // the thread has finished
  bool left = false;  // nobody waits for it
  // Time is up: no further page is read. Set under the mutex.
  std::atomic<bool> stop = false;
};

namespace {

// Reading a column that is no longer wanted stops after the current page.
Result<void> check_not_stopped(const std::atomic<bool>& stop) {
  if (stop.load()) return error(Errc::kDeadlineExceeded, "reading kept pages was left");
  return {};
}

Result<ColumnReading::Column> read_column(PrefixArchive& archive, const PageContentKey& key,
                                          const std::atomic<bool>& stop) {
  ColumnReading::Column column{
      .key = key, .page = 0, .digests = {}, .checksums = {}, .pages = AlignedBuffer()};
  MR_RETURN_IF_ERROR(archive.load(
      key,
      [&](const PrefixArchive::Table& table) -> Result<void> {
        column.page = table.page;
        column.digests.assign(table.digests.begin(), table.digests.end());
        column.checksums.assign(table.checksums.begin(), table.checksums.end());
        return check_not_stopped(stop);
      },
      [&](int64_t row, std::span<const std::byte> page) -> Result<void> {
        const auto page_bytes = std::ssize(page);
        if (column.pages.bytes() == 0) {
          column.pages = AlignedBuffer(page_bytes * std::ssize(column.checksums));
        }
        std::memcpy(column.pages.as<std::byte>() + row * page_bytes, page.data(), page.size());
        return check_not_stopped(stop);
      }));
  return column;
}

}  // namespace

ColumnReading::ColumnReading(std::shared_ptr<PrefixArchive> archive,
                             std::vector<PageContentKey> keys, const Clock& clock, TimePoint until,
                             std::shared_ptr<NumLeft> num_left)
    : clock_(clock), until_(until), shared_(std::make_shared<Shared>()) {
  shared_->archive = std::move(archive);
  shared_->keys = std::move(keys);
  shared_->num_left = std::move(num_left);
  thread_ = std::thread([shared = shared_] { read_all(*shared); });
}

ColumnReading::~ColumnReading() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop.store(true);
  shared_->changed.notify_all();
  while (!shared_->done && clock_.now() < until_) shared_->changed.wait_for(lock, kPoll);
  if (!shared_->done) {
    shared_->left = true;
    shared_->ready.clear();
    shared_->num_left->fetch_add(1);
    thread_.detach();
    return;
  }
  lock.unlock();
  thread_.join();
}

Result<ColumnReading::Column> ColumnReading::next() {
  std::unique_lock lock(shared_->mutex);
  for (;;) {
    const bool is_up = clock_.now() >= until_;
    if (is_up) shared_->stop.store(true);
    if (!shared_->ready.empty()) {
      auto column = std::move(shared_->ready.front());
      shared_->ready.pop_front();
      shared_->changed.notify_all();
      return column;
    }
    if (is_up) return error(Errc::kDeadlineExceeded, "reading kept pages takes too long");
    if (shared_->done) return error(Errc::kNotFound, "all kept pages are read");
    shared_->changed.wait_for(lock, std::min(kPoll, until_ - clock_.now()));
  }
}

void ColumnReading::read_all(Shared& shared) {
  for (const auto& key : shared.keys) {
    {
      std::unique_lock lock(shared.mutex);
      shared.changed.wait(lock,
                          [&] { return shared.stop.load() || shared.ready.size() < kMostReady; });
      if (shared.stop.load()) break;
    }
    auto column = read_column(*shared.archive, key, shared.stop);
    const std::lock_guard lock(shared.mutex);
    const bool failed = !column.ok();
    if (!shared.left) shared.ready.push_back(std::move(column));
    shared.changed.notify_all();
    if (failed) break;
  }
  // The archive is not used after this. Whoever sees that the thread is done, or that no reads are
  // left, may rely on that.
  auto archive = std::move(shared.archive);
  archive.reset();
  const std::lock_guard lock(shared.mutex);
  shared.done = true;
  if (shared.left) shared.num_left->fetch_sub(1);
  shared.changed.notify_all();
}

}  // namespace millrace::kvstore
