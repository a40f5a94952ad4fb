// SPDX-License-Identifier: Apache-2.0
#include "worker/store/pool_locker.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/units.h"

namespace millrace::worker {

namespace {

// While the driver locks a piece, some 1 ms, it launches no kernel of this process. Locking all of
// the peers' pools at the start, in pieces of 64 MiB, held up the first prompt for 39 s (four
// H100s, 160 GiB of pools).
constexpr size_t kPieceBytes = size_t{8} << 20;
// The pause after each piece that is locked while a prompt runs, in times that locking it took: a
// tenth of the time goes into locking.
constexpr int kPauses = 9;
// Pauses until pieces that were not resident are looked at again: the first, and the longest, where
// nothing makes them resident before they are used (Prefault).
constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::minutes(1);

// Locking memory that is not resident would clear it on this thread; its owner clears it with
// several.
bool is_resident(std::span<const std::byte> memory) {
  const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(ceil_div(memory.size(), page_bytes));
  void* const data = const_cast<std::byte*>(memory.data());
  return ::mincore(data, memory.size(), pages.data()) == 0 &&
         std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

}  // namespace

PoolLocker::PoolLocker(kernels::DeviceMemory& device, Options options)
    : device_(device),
      busy_(options.busy),
      locks_while_busy_(options.locks_while_busy),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

PoolLocker::~PoolLocker() = default;

void PoolLocker::add(std::span<const std::byte> memory) {
  if (refused_) return;
  {
    const std::lock_guard lock(mutex_);
    while (!memory.empty()) {
      waiting_.push_back(memory.first(std::min(kPieceBytes, memory.size())));
      memory = memory.subspan(waiting_.back().size());
    }
  }
  changed_.notify_one();
}

void PoolLocker::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  Duration next_look = kFirstPause;
  while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); }) &&
         !stop.stop_requested()) {
    const auto pieces = std::exchange(waiting_, {});
    lock.unlock();
    const auto later = lock_resident(pieces, stop);
    if (refused_) return;
    next_look = later.size() < pieces.size() ? kFirstPause : std::min(2 * next_look, kLongestPause);
    lock.lock();
    const size_t num_new = waiting_.size();
    waiting_.insert(waiting_.begin(), later.begin(), later.end());
    if (num_new > 0 || later.empty()) continue;
    changed_.wait_for(lock, stop, next_look, [&] { return waiting_.size() > later.size(); });
  }
}

PoolLocker::Pieces PoolLocker::lock_resident(const Pieces& pieces, const std::stop_token& stop) {
  Pieces later;
  for (const auto piece : pieces) {
    while (busy_ && !locks_while_busy_ && !stop.stop_requested()) pause(kFirstPause, stop);
    if (stop.stop_requested()) break;
    if (!is_resident(piece)) {
      later.push_back(piece);
      continue;
    }
    const Stopwatch stopwatch;
    if (!lock(piece)) break;
    if (!busy_) continue;
    pause(std::chrono::duration_cast<Duration>(
              std::chrono::duration<double>(kPauses * stopwatch.elapsed_s())),
          stop);
  }
  return later;
}

bool PoolLocker::lock(std::span<const std::byte> piece) {
  auto locked = device_.lock_host(piece);
  if (!locked.ok()) {
    refused_ = true;
    log::warn("cached prefixes come to the GPU at half the speed: {}", locked.error().message);
    return false;
  }
  locks_.push_back(std::move(*locked));
  locked_bytes_ += std::ssize(piece);
  return true;
}

void PoolLocker::pause(Duration longest, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any nothing;
  std::unique_lock lock(mutex);
  nothing.wait_for(lock, stop, longest, [] { return false; });
}

}  // namespace millrace::worker
