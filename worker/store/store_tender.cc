// SPDX-License-Identifier: Apache-2.0
#include "worker/store/store_tender.h"

namespace millrace::worker {

namespace {

// The longest delay until the thread notices room in memory, or that it is to stop. Readers wake
// it.
constexpr std::chrono::milliseconds kLookInterval{100};

}  // namespace

StoreTender::StoreTender(kvstore::KvStore& store) {
  if (!store.needs_tending()) return;
  thread_ = std::jthread([&store](const std::stop_token& stop) {
    while (!stop.stop_requested()) store.tend(Deadline::after(kLookInterval));
  });
}

}  // namespace millrace::worker
