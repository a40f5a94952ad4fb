// How much of a prompt the ranks of a group hold already, and who holds what: all of them must say
// the same.
#pragma once

#include <span>
#include <vector>

#include "common/clock.h"
#include "common/content/page_keys.h"
#include "common/result.h"
#include "kvstore/kv_store.h"
#include "worker/engine/prefix.h"
#include "worker/ranks/rank_grid.h"

namespace millrace::worker {

struct CachedPrefix {
  PromptPrefix prefix;
  std::vector<kvstore::CachedPage> own;  // this rank's pages of it

  // As `rank` has it.
  static CachedPrefix of(std::vector<int> owners, std::span<const PageContentKey> keys, int rank);
};

// Collective over the world. The longest run of `keys`, from the first on, that the stores hold
// whole and intact: each page on one context-parallel rank, with the heads of all its
// tensor-parallel ranks. `keys` are the same on all ranks; every rank stores its heads. What turns out
// damaged is forgotten (KvStore::check_cached, on so many threads), and the prefix ends before it.
// Nothing is held: who begins a request with it does that.
Result<CachedPrefix> agree_on_prefix(kvstore::KvStore& store, const RankGrid& grid,
                                     std::span<const PageContentKey> keys, Deadline deadline,
                                     int num_threads = 1);

}  // namespace millrace::worker
