#include "worker/store/pool_locks.h"

#include <utility>

#include "common/log.h"

namespace millrace::worker {

bool PoolLocks::add(std::span<const std::byte> piece) {
  {
    const std::lock_guard lock(mutex_);
    if (refused_) return false;
  }
  auto locked = device_.lock_host(piece);
  const std::lock_guard lock(mutex_);
  if (locked.ok()) {
    locks_.push_back(std::move(*locked));
    return true;
  }
  if (!std::exchange(refused_, true)) {
    spdlog::warn("cached prefixes come to the GPU at half the speed: {}", locked.error().message);
  }
  return false;
}

}  // namespace millrace::worker
