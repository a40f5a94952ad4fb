// The thread that tends a rank's store (KvStore::tend): pages rise from disk and are read ahead while
// prompts are computed and pages are sent, and prefixes are kept for the group's next start. It touches the
// device only for those that lie there alone. None where there is no disk tier and nothing is kept.
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
