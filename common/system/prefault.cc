// SPDX-License-Identifier: Apache-2.0
#include "common/system/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/log.h"
#include "common/units.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace millrace {

namespace {

// How much a thread makes resident at once. Meanwhile it holds the lock of the process's address
// space, and whoever maps or unmaps memory waits: a few ms.
constexpr size_t kStepBytes = size_t{8} << 20;

}  // namespace

Prefault::Prefault(std::span<std::byte> memory, int num_threads, Then then)
    : memory_(memory), then_(std::move(then)) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
  }
}

Prefault::~Prefault() {
  for (auto& thread : threads_) thread.request_stop();
}

void Prefault::wait() {
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void Prefault::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const size_t first = next_.fetch_add(kStepBytes);
    if (first >= memory_.size()) return;
    const size_t bytes = std::min(kStepBytes, memory_.size() - first);
    const auto piece = memory_.subspan(first, bytes);
    if (madvise(piece.data(), bytes, MADV_POPULATE_WRITE) == 0) {
      if (then_) then_(piece);
      continue;
    }
    log::info("{} of memory become resident when they are first used: {}",
              format_bytes(static_cast<int64_t>(memory_.size() - first)),
              std::generic_category().message(errno));
    next_ = memory_.size();
    return;
  }
}

}  // namespace millrace
