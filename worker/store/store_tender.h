// SPDX-License-Identifier: Apache-2.0
// The thread that tends a rank's store (StoreMaintenance::tend). While prompts are computed and pages are
// sent, it moves pages up from disk, reads pages ahead, and keeps prefixes for the group's next
// start. It touches the device for pages that lie there alone, and to bring pages there that are
// pulled often. There is no thread where the store needs none.
#pragma once

#include <thread>

#include "kvstore/kv_store.h"

namespace millrace::worker {

class StoreTender {
 public:
  // `store` outlives the tender.
  explicit StoreTender(kvstore::KvStore& store);

 private:
  std::jthread thread_;
};

}  // namespace millrace::worker
