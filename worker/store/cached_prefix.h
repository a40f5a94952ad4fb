// SPDX-License-Identifier: Apache-2.0
// Which first pages of a prompt the ranks of a group hold already, so that they need not compute
// them, and which rank holds each page. All ranks arrive at the same answer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/content/page_keys.h"
#include "common/result.h"
#include "engine/exchange/prefix.h"
#include "engine/ranks/rank_grid.h"
#include "kvstore/cached_pages.h"
#include "worker/store/prefix_cost.h"
#include "worker/store/row_pace.h"

namespace millrace::worker {

struct CachedPrefix {
  engine::PromptPrefix prefix;
  std::vector<kvstore::CachedPage> own;  // this rank's pages of it
  // Further cached pages behind it, which are not worth the time to load.
  int64_t num_left = 0;

  // The prefix as context-parallel rank `rank` sees it.
  static CachedPrefix of(std::vector<int> owners, std::span<const PageContentKey> keys, int rank);
};

struct PrefixCheck {
  // kDisk leaves pages in memory unchecked: PageReader checks them as it loads them. To read 16 GiB
  // a second time took 0.64 s of 1.43 s on an H200 (docs/notebook/prefix-on-gpus.md).
  kvstore::CacheCheck pages = kvstore::CacheCheck::kAll;
  int num_threads = 1;
  int64_t num_tokens = 0;  // of the prompt
  // For the next two, rank 0's values count for all ranks.
  // The time to compute rows; none: all pages that are found are worth loading.
  std::optional<RowCost> rows = std::nullopt;
  bool loads_beside = false;  // pages are loaded while the device computes
  double least_gain_s = kLeastGainS;
  // The context-parallel rank that computes the prompt in its lane; its copy of a page wins a tie.
  // -1: all ranks compute the prompt.
  int lane = -1;
  bool lane_alone = false;  // pages that other ranks hold are of no use
};

// Collective over the world. Finds the longest run of `keys`, from the first on, that the stores
// hold whole and intact. Each page comes from one context-parallel rank, the one that has it
// nearest, with the heads of all its tensor-parallel ranks. Where pages lie on slow tiers, the
// prefix ends where computing the rest is faster (worker/store/prefix_cost.h). `keys` are the same
// on all ranks, and every rank stores its own heads. A page that turns out damaged is forgotten
// (CachedPages::check_cached), and the prefix ends before it. No page is held: the caller holds them by
// beginning a request with the prefix.
Result<CachedPrefix> agree_on_prefix(kvstore::CachedPages& store, const engine::RankGrid& grid,
                                     std::span<const PageContentKey> keys, Deadline deadline,
                                     const PrefixCheck& check = {});

}  // namespace millrace::worker
