// How much of a prompt the ranks of a group hold already and do not compute, and who holds what: all of them must
// say the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/content/page_keys.h"
#include "common/result.h"
#include "kvstore/kv_store.h"
#include "worker/exchange/prefix.h"
#include "worker/ranks/rank_grid.h"
#include "worker/store/prefix_cost.h"
#include "worker/store/row_pace.h"

namespace millrace::worker {

struct CachedPrefix {
  PromptPrefix prefix;
  std::vector<kvstore::CachedPage> own;  // this rank's pages of it
  // Pages behind it that are there too, and not worth the time that loading them takes.
  int64_t num_left = 0;

  // As `rank` has it.
  static CachedPrefix of(std::vector<int> owners, std::span<const PageContentKey> keys, int rank);
};

struct PrefixCheck {
  // kDisk leaves pages in memory to who loads them (PageReader): to read 16 GiB once more took 0.64 s of
  // 1.43 on an H200 (docs/notebook/prefix-on-gpus.md).
  kvstore::CacheCheck pages = kvstore::CacheCheck::kAll;
  int num_threads = 1;
  int64_t num_tokens = 0;  // of the prompt
  // Rank 0's count for all. What computing takes; none: all pages that are found are worth loading.
  std::optional<RowCost> rows = std::nullopt;
  bool loads_beside = false;  // pages, while the device computes
  double least_gain_s = kLeastGainS;
  // The context-parallel rank that computes the prompt in its lane, which is asked for a page first; -1: all ranks do.
  int lane = -1;
  bool lane_alone = false;  // and what the others hold is of no use
};

// Collective over the world. The longest run of `keys`, from the first on, that the stores hold
// whole and intact: each page on one context-parallel rank, the one that has it nearest, with the heads of all its
// tensor-parallel ranks. Where pages lie on slow tiers it ends where computing the rest is faster
// (worker/store/prefix_cost.h). `keys` are the same on all ranks; every rank stores its heads. What turns out
// damaged is forgotten (KvStore::check_cached), and the prefix ends before it. Nothing is held: who
// begins a request with it does that.
Result<CachedPrefix> agree_on_prefix(kvstore::KvStore& store, const RankGrid& grid,
                                     std::span<const PageContentKey> keys, Deadline deadline,
                                     const PrefixCheck& check = {});

}  // namespace millrace::worker
