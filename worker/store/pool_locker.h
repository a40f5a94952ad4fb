// SPDX-License-Identifier: Apache-2.0
// Page-locks host pools for the device, so that it reads pages where they lie. The driver launches
// no kernel of this process while it locks memory, so pools are locked in small pieces, by one
// thread, and most of it while no prompt runs. Where the system refuses to lock them, cached pages
// reach the device through the readers' own page-locked memory, as they do until a piece is locked.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/api/device_memory.h"

namespace millrace::worker {

// All functions: any thread.
class PoolLocker {
 public:
  struct Options {
    bool busy = false;              // whether a prompt runs at first
    bool locks_while_busy = false;  // see lock_while_busy()
  };

  // `device` outlives it.
  PoolLocker(kernels::DeviceMemory& device, Options options);
  // Unlocks all.
  ~PoolLocker();
  PoolLocker(const PoolLocker&) = delete;
  PoolLocker& operator=(const PoolLocker&) = delete;

  // `memory`: a pool or a part of one, of whole system pages, that outlives this object. Pieces are
  // locked in the order in which they were added, each once it is resident; somebody else makes it
  // so. After the first refusal, which is logged once, no more pieces are tried.
  void add(std::span<const std::byte> memory);
  // Whether a prompt runs. While none does, one piece is locked after another.
  void set_busy(bool busy) { busy_ = busy; }
  // Says that prompts read this memory: locking it is then worth some of a running prompt's time.
  void lock_while_busy() { locks_while_busy_ = true; }
  // How many bytes are locked.
  int64_t locked_bytes() const { return locked_bytes_; }
  // Whether the system has refused to lock a piece.
  bool refused() const { return refused_; }

 private:
  using Pieces = std::vector<std::span<const std::byte>>;

  void run(const std::stop_token& stop);
  // Locks those that are resident, and returns the others.
  Pieces lock_resident(const Pieces& pieces, const std::stop_token& stop);
  bool lock(std::span<const std::byte> piece);
  // Returns early only to stop.
  void pause(Duration longest, const std::stop_token& stop);

  kernels::DeviceMemory& device_;
  std::vector<kernels::HostLock> locks_;  // the thread's
  std::atomic<bool> busy_;
  std::atomic<bool> locks_while_busy_;
  std::atomic<bool> refused_ = false;
  std::atomic<int64_t> locked_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  Pieces waiting_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace millrace::worker
