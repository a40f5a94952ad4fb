// SPDX-License-Identifier: Apache-2.0
// The KV cache that a rank holds for finished and running requests: pages in three tiers, and the
// leases by which they may be read.
//
// A page is 64 tokens of one layer and one kv head: K [64, head_dim], then V [64, head_dim]. The
// tiers are device (on the CPU backend a budgeted region of its own, so that the logic is the
// same), host and disk. Each tier is one pool of equal slots, shared by the pages of all layers and
// requests (PSA's unified pool). The life of a request:
//
//   begin_request   reserves room for every page over all tiers, or refuses with the numbers
//   open            for a reader that must not wait for the end: each layer may be pinned as soon
//                   as it is complete, that is, written and scored
//   write_pages     as each layer finishes: into a device slot, and written through to host as far
//                   as its budget goes, so that those device copies are clean and evicting them is
//                   only a rebind
//   set_scores      of that layer's pages; decides what stays when the device pool is short
//   drop_pages      if a smaller cache is asked for: gives up pages that nobody is to read
//   seal            places all pages; from now on only pin_pages and pin_digests, until the lease
//                   ends
//   remember        if later prompts may begin with the same pages: keeps them under the key of
//                   their content after the request is gone, until their room is needed
//   release | expire | abort
//
// A request may begin with pages that the store remembers. It holds them like its own, and no copy
// is made.
//
// Placement: attention decides what lies in faster memory (placement.h): sinks, the recent window,
// the first layers, then pages by score until the head's mass or the byte budget is reached. A page
// that is pulled often, or that prompts often begin with, counts more. All requests compete by the
// same rule. At seal and in tend(), a page on disk takes the place of a page on the host that is
// worth much less, but never of a pinned one. The store drops nothing of its own accord: cold means
// slower.
//
// Threads: every method may be called from any thread. pin_pages may read the disk or a GPU;
// pin_in_place, pin_digests and scores read neither.
// Errors: kExhausted (begin_request; pin_pages, while other readers hold the memory to read into),
// kInvalidArgument (pages that do not ascend), kNotFound (unknown request, page outside it, expired
// or foreign lease: the message says which), kUnavailable (a page of an open request that is not
// complete yet), kCorrupt (a page read back from disk does not match its checksum), kIo.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "kvstore/cached_pages.h"
#include "kvstore/leased_pages.h"
#include "kvstore/pages/page.h"
#include "kvstore/request_writer.h"
#include "kvstore/store_maintenance.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::kvstore {

// Room for eight of the largest replies of a KV server.
inline constexpr int64_t kDefaultReadBytes = int64_t{512} << 20;

// A layer of 131,072 tokens of an 8B model on two ranks.
inline constexpr int64_t kDefaultReadAheadBytes = int64_t{256} << 20;

// Budgets of the tiers. Memory is taken once, at construction; disk space as it is used.
struct KvStoreConfig {
  int64_t device_bytes = 0;
  // Also pays for the records (digest and entry) of all pages that the three tiers can hold, a
  // twentieth of 16-bit pages. The rest holds pages.
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  std::string disk_directory;  // empty: no disk tier
  // Whether other processes that are given leave can map the pools in host memory (shared_pools).
  bool shares_memory = false;
  // Host memory outside the pools for pinned pages that had to be read: from disk, or from a device
  // whose memory is not the host's.
  int64_t read_bytes = kDefaultReadBytes;
  // Host memory outside the pools for pages on disk that are read before a reader asks for them. 0:
  // no reading ahead.
  int64_t read_ahead_bytes = kDefaultReadAheadBytes;
  // Whether seal() moves the best pages to the device. False for a GPU's memory, where each move
  // crosses the bus: there a page that is written takes the slot of a page that carries no mass,
  // and tend() brings pages there that are pulled often.
  bool promotes = true;
  // Disk space, on top of disk_bytes, for cached prefixes that outlive the process. 0: none do.
  int64_t kept_bytes = 0;
  std::string kept_directory;
  std::string kept_name;      // of the files; used by one process at a time
  std::string kept_identity;  // of the pages, besides the geometry; files of another are emptied
  KvGeometry geometry;        // of the one model this rank serves
};

struct TierUse {
  int64_t slots_total = 0;
  int64_t slots_used = 0;
  int64_t slots_cached = 0;  // of these, for pages that are remembered
  int64_t slot_bytes = 0;
};

// Remembered pages that gave way, by what they made room for.
struct CacheEvictions {
  int64_t for_requests = 0;  // in the tiers, for the pages of a request
  int64_t for_kept = 0;      // in the tiers, for kept pages that a request was to begin with
  int64_t in_files = 0;      // kept pages, for others to be kept

  int64_t total() const { return for_requests + for_kept + in_files; }
};

struct KvStoreStats {
  PerTier<TierUse> tiers;
  int64_t pages_available = 0;    // to a request that begins now
  int64_t cached_pages = 0;       // under a key, held by requests or not
  int64_t idle_cached_pages = 0;  // of these, held by no request
  // Since start: remembered pages that gave way, in the tiers or among the kept ones, and columns
  // that did not match their checksum.
  CacheEvictions cache_evictions;
  int64_t cache_corruptions = 0;
  // Since start: pages on slow tiers that lost their key to pages that a request computed again,
  // because computing was faster.
  int64_t cache_replacements = 0;
  double eviction_clock = 0;  // the highest worth that gave way (advance_eviction_clock)
  // Since start: pages on disk that were read to be checked before requests began with them, and
  // kept pages.
  ReadTotals disk_checks;
  ReadTotals kept_reads;
  int64_t kept_pages = 0;      // on disk for the next process, whether they are in the tiers or not
  int64_t kept_bytes = 0;      // their size
  int64_t pages_kept = 0;      // written there since start
  int64_t pages_restored = 0;  // read from there since start
  int64_t late_restores = 0;   // since start: times that time ran out before all were
  int64_t requests = 0;        // held
  int64_t leases_active = 0;
  int64_t unread_pages = 0;    // of sealed requests that no reader has come for yet
  int64_t leases_expired = 0;  // since start
  int64_t pages_written = 0;
  int64_t pages_dropped = 0;   // by drop_pages
  PerTier<int64_t> page_hits;  // pins served from each tier
  int64_t evictions = 0;       // device slots given up
  // Copies of pages from tier to tier: [from][to]. Moves that need no copy, because there is
  // another one, do not count.
  PerTier<PerTier<int64_t>> moves;
  int64_t read_ahead_pages = 0;  // read from disk before anyone asked
  int64_t read_ahead_hits = 0;   // of these, pinned
  int64_t pinned_pages = 0;      // now
};

// Whoever needs one of the four is given that one.
class KvStore : public RequestWriter,
                public LeasedPages,
                public CachedPages,
                public StoreMaintenance {
 public:
  const KvGeometry& geometry() const override = 0;
  virtual KvStoreStats stats() const = 0;
};

// kInvalidArgument, with the numbers, if the host's budget is smaller than the records of the other
// tiers' pages. `clock` outlives the store. `device_memory`: the slots of the device tier, as many
// as fit config.device_bytes; without it they are in host memory.
Result<std::unique_ptr<KvStore>> make_kv_store(const KvStoreConfig& config, const Clock& clock,
                                               std::unique_ptr<SlotMemory> device_memory = nullptr);

}  // namespace millrace::kvstore
