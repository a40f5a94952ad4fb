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
// that is pulled often counts more. All requests compete by the same rule. At seal and in tend(), a
// page on disk takes the place of a page on the host that is worth much less, but never of a pinned
// one. The store drops nothing of its own accord: cold means slower.
//
// Threads: every method may be called from any thread. pin_pages may read the disk or a GPU;
// pin_in_place, pin_digests and scores read neither.
// Errors: kExhausted (begin_request; pin_pages, while other readers hold the memory to read into),
// kInvalidArgument (pages that do not ascend), kNotFound (unknown request, page outside it, expired
// or foreign lease: the message says which), kUnavailable (a page of an open request that is not
// complete yet), kCorrupt (a page read back from disk does not match its checksum), kIo.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/content/page_keys.h"
#include "common/result.h"
#include "common/system/prefault.h"
#include "common/system/shared_memory.h"
#include "kvstore/pages/cache_log.h"
#include "kvstore/pages/page.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::kvstore {

// Room for eight of the largest replies of a KV server.
inline constexpr int64_t kDefaultReadBytes = int64_t{512} << 20;

// A layer of 131,072 tokens of an 8B model on two ranks.
inline constexpr int64_t kDefaultReadAheadBytes = int64_t{256} << 20;

// How long check_cached reads kept pages if the caller gives no time.
inline constexpr Duration kDefaultKeptPatience = std::chrono::seconds(10);

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
  // crosses the bus: there a page that is written takes the slot of a page that carries no mass.
  bool promotes = true;
  // Disk space, on top of disk_bytes, for cached prefixes that outlive the process. 0: none do.
  int64_t kept_bytes = 0;
  std::string kept_directory;
  std::string kept_name;      // of the files; used by one process at a time
  std::string kept_identity;  // of the pages, besides the geometry; files of another are emptied
  KvGeometry geometry;        // of the one model this rank serves
};

// A page of a prompt, named by its content.
struct CachedPage {
  int64_t page = 0;
  PageContentKey key{};
};

// first_page, first_page + 1, ...
inline std::vector<int64_t> consecutive_pages(int64_t first_page, int64_t num_pages) {
  std::vector<int64_t> pages(static_cast<size_t>(num_pages));
  // Unsigned, because numbers from the network may overflow.
  auto next = static_cast<uint64_t>(first_page);
  for (int64_t& page : pages) page = static_cast<int64_t>(next++);
  return pages;
}

// A page held in place for reading. `bytes` is valid while the PinnedPages lives.
struct PinnedPage {
  std::span<const std::byte> bytes;
  // From pin_in_place, where `bytes` is empty: a copy of the page in host memory that is not held
  // there. It may be overwritten at any time, so what is read of it counts only once its checksum
  // matches.
  std::span<const std::byte> loose_bytes;
  // Where `bytes` is empty: the page's address for operations of this process' device. Not for the
  // host.
  const std::byte* device_bytes = nullptr;
  // Offset in shared_device_pool(), if the page is held there; -1: it is not.
  int64_t device_offset = -1;
  std::span<const float> digest;  // [3, head_dim]: min, max, radius
  uint64_t checksum = 0;
  float score = 0;
  Tier tier = Tier::kDevice;
};

// A page where it lies.
struct PageCopy {
  // page_bytes() bytes in host memory; null: the page is only on other tiers.
  const std::byte* bytes = nullptr;
  uint64_t checksum = 0;
};

// The pages that a request began with. Destroying it releases them.
class HeldPrefix {
 public:
  virtual ~HeldPrefix() = default;
  // [pages, layers, kv heads]. The bytes stay where they are, except the host's copy of a page that
  // is also in a GPU's memory: what is read of that copy counts only once its checksum matches.
  virtual std::span<const PageCopy> copies() const = 0;
};

// Pages of one layer and kv head. Destroying it unpins.
class PinnedPages {
 public:
  virtual ~PinnedPages() = default;
  virtual std::span<const PinnedPage> pages() const = 0;
  // Reads the pages whose bytes are empty. After kExhausted, kCorrupt or kIo the object is of no
  // more use.
  virtual Result<void> load() = 0;
  // The reader copies these pages (indices into pages()) out of shared pools itself. They count as
  // pulled although their bytes are empty.
  virtual void count_copied(std::span<const size_t> pages) = 0;
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

// Pages of one request per tier, as placed by seal(); without the pages that the request dropped.
struct Placement {
  PerTier<int64_t> pages;
};

// Which copies of cached pages are compared with their checksums.
enum class CacheCheck {
  kAll,
  kDisk,  // of pages that lie only on disk
};

// Where a remembered page lies, over all layers and kv heads. What is neither on disk nor kept is
// in memory.
struct CachedPlace {
  bool held = false;  // remembered or kept; if false, the other fields mean nothing
  bool kept = false;  // only in the files that outlive the process
  double share_on_disk = 0;
};

// Bytes per second at which pages are read, checksums included (kvstore/kept/read_meter.h).
struct ReadRates {
  double disk = 0;
  double kept = 0;
};

class KvStore {
 public:
  virtual ~KvStore() = default;

  virtual const KvGeometry& geometry() const = 0;

  // `pages`: the prompt's pages that this rank is to compute, ascending, the same for every layer
  // and kv head. `prefix`: remembered pages before these, ascending. The request holds them as if
  // it had written them; kUnavailable names the first that is gone. If room is lacking, idle
  // remembered pages give way.
  virtual Result<void> begin_request(const std::string& request_id, int64_t num_tokens,
                                     std::span<const int64_t> pages,
                                     std::span<const CachedPage> prefix) = 0;
  Result<void> begin_request(const std::string& request_id, int64_t num_tokens,
                             std::span<const int64_t> pages) {
    return begin_request(request_id, num_tokens, pages, {});
  }
  // Opens a request that is being written: from now on, whoever names `lease_id` may read its
  // complete pages. That lease has no end until seal() gives it one; abort() ends it.
  virtual Result<void> open(const std::string& request_id, const std::string& lease_id) = 0;
  // Writes pages of one layer and kv head, by ascending number. `kv`: geometry.page_bytes() for
  // each, one after the other; copied. Each page of the request is written exactly once. After an
  // error, the pages that could not be copied, which may be all of them, are still to be written.
  virtual Result<void> write_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                                   std::span<const int64_t> pages, std::span<const std::byte> kv,
                                   const PageDigest& digests) = 0;
  Result<void> write_page(const std::string& request_id, const PageKey& key,
                          std::span<const std::byte> kv, const PageDigest& digest) {
    return write_pages(request_id, key.layer, key.kv_head, std::span(&key.page, 1), kv, digest);
  }
  // Scores of the rank's pages of one layer and kv head, in the order given to begin_request, the
  // prefix first. Pages that are written become complete with it. A page of the prefix keeps the
  // worth that it has for earlier requests, unless this one needs it much more (displaces(),
  // kvstore/rules/placement.h).
  virtual Result<void> set_scores(const std::string& request_id, int32_t layer, int32_t kv_head,
                                  std::span<const float> scores) = 0;
  // The same for all layers and kv heads, [layers, kv heads, pages], of a request whose only pages
  // on this rank are those that it began with. The pages keep the worth that they have for earlier
  // requests.
  virtual Result<void> set_prefix_scores(const std::string& request_id,
                                         std::span<const float> scores) = 0;
  // For a request that is written and not open. Removes these pages of one layer and kv head, which
  // ascend, from the request and frees their slots, except those of pages that others hold too.
  // Readers get kNotFound for them; scores() still says what they were worth. Such a request is not
  // remembered.
  virtual Result<void> drop_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                                  std::span<const int64_t> pages) = 0;
  // All pages must be written. From now until the lease ends, whoever names `lease_id` may read the
  // request. If the request was opened, `lease_id` must be the one it was opened with.
  virtual Result<Placement> seal(const std::string& request_id, const std::string& lease_id,
                                 Duration lease) = 0;
  // Keeps pages of a sealed request under these keys after the request is gone. If a key is known
  // already, the page that has it stays, unless nobody holds it and more of it is on disk. Returns
  // how many pages of the prompt are new. `cost`: what the prompt takes to compute per page of all
  // layers and heads, where 1 is the cost of a page with nothing before it. The worth of all its
  // remembered pages follows from it (kvstore/rules/retention.h). `prompt`: what the log is told,
  // if anything. kNotFound: the request is gone, or a page is not part of it. kInvalidArgument: it
  // has dropped pages.
  virtual Result<int64_t> remember(const std::string& request_id, std::span<const CachedPage> pages,
                                   double cost, std::shared_ptr<const CachedPrompt> prompt) = 0;
  Result<int64_t> remember(const std::string& request_id, std::span<const CachedPage> pages,
                           double cost = 1) {
    return remember(request_id, pages, cost, nullptr);
  }
  // What has happened to the cached pages since a place in the log (kvstore/pages/cache_log.h): an
  // end() of earlier news, or this one's end, where nothing has happened yet. Pages that could not
  // be remembered count as gone.
  virtual CacheNews read_cache_log(int64_t from) = 0;
  virtual int64_t cache_log_end() const = 0;
  // Whatever is used from here on is worth more than what gave way before
  // (KvStoreStats::eviction_clock). Stores that are to give up the same pages must be told the same
  // clock between the same two requests. The clock never goes back.
  virtual void advance_eviction_clock(double clock) = 0;
  // Which of these pages this rank remembers or has kept, or is keeping.
  virtual std::vector<bool> find_cached(std::span<const PageContentKey> keys) const = 0;
  // Where these pages lie (kept ones only while their files answer), and how fast the tiers that
  // take time to read were read lately.
  virtual std::vector<CachedPlace> place_cached(std::span<const PageContentKey> keys) const = 0;
  virtual ReadRates read_rates() const = 0;
  // As find_cached, but pages that turn out damaged, in any layer or head, are not found and are
  // forgotten. Reads all that `check` says. Pages that are only kept are brought into the tiers,
  // and all of each is checked. If there is no room, one is damaged, or `kept_patience` is over,
  // the pages behind it are not brought.
  virtual std::vector<bool> check_cached(std::span<const PageContentKey> keys,
                                         CacheCheck check = CacheCheck::kAll,
                                         Duration kept_patience = kDefaultKeptPatience) = 0;
  // Pages that a request being written began with, for whoever computes the rest: needs no lease
  // and does not count as a pull. Otherwise as pin_in_place.
  virtual Result<std::unique_ptr<PinnedPages>> pin_prefix(const std::string& request_id,
                                                          int32_t layer, int32_t kv_head,
                                                          std::span<const int64_t> pages) = 0;
  // All the pages that the request began with, in all layers and heads, for a caller that reads
  // them from elsewhere.
  virtual Result<std::unique_ptr<HeldPrefix>> hold_prefix(const std::string& request_id) = 0;
  // Forgets a request in any state (cancelled, failed). Pinned pages stay valid until unpinned, and
  // what the store remembers stays.
  virtual void abort(const std::string& request_id) = 0;

  // `pages`: page numbers of the prompt, ascending, at least one.
  virtual Result<std::unique_ptr<PinnedPages>> pin_pages(const std::string& request_id,
                                                         const std::string& lease_id, int32_t layer,
                                                         int32_t kv_head,
                                                         std::span<const int64_t> pages) = 0;
  // The same without reading. Until load() reads them, `bytes` is empty for pages that host memory
  // does not hold.
  virtual Result<std::unique_ptr<PinnedPages>> pin_in_place(const std::string& request_id,
                                                            const std::string& lease_id,
                                                            int32_t layer, int32_t kv_head,
                                                            std::span<const int64_t> pages) = 0;
  // Digests, checksums and scores of these pages, for a caller that does not need their bytes.
  virtual Result<std::unique_ptr<PinnedPages>> pin_digests(const std::string& request_id,
                                                           const std::string& lease_id,
                                                           int32_t layer, int32_t kv_head,
                                                           std::span<const int64_t> pages) = 0;
  // Scores of all pages that this rank holds of these heads, [layers, kv heads, pages]. Needs the
  // same lease, and refuses pages that are not complete yet as the pins do.
  virtual Result<std::vector<float>> scores(const std::string& request_id,
                                            const std::string& lease_id,
                                            const HeadBlock& heads) const = 0;

  // Whether there is a lease with this id under which something may be read. The time taken does
  // not reveal how much of a guess was right.
  virtual bool knows_lease(std::string_view lease_id) const = 0;

  // `waited`: time since the renewal was asked for. A lease that had not ended by then is renewed,
  // unless expire_leases() has ended it already.
  virtual Result<void> renew_lease(const std::string& request_id, const std::string& lease_id,
                                   Duration lease, Duration waited) = 0;
  virtual Result<void> release_lease(const std::string& request_id,
                                     const std::string& lease_id) = 0;
  // Ends leases that are over. The owner calls it about once a second. Returns how many ended.
  virtual int64_t expire_leases() = 0;

  // Brings pages nearer to their readers, one page at a time: reads ahead of readers, and moves the
  // best pages on disk into memory, where they take the places of pages worth much less. Then keeps
  // what is remembered and not yet kept, one page in all layers and heads at a time, and brings
  // what earlier processes kept into free memory.
  // A thread of the owner calls it over and over. Returns whether there was anything to do. If
  // there was not, or the disk for kept pages has not taken one, it returns at `deadline` at the
  // latest. If a read of kept pages does not return, it is waited for once, for a second.
  virtual bool tend(Deadline deadline) = 0;

  // Called before the process ends in good order: writes pages that later processes may begin with
  // to where they outlive this one. Returns when `patience` is over, whatever the disk does: the
  // number of pages not written. A write that hangs then is abandoned, and does not hold up the
  // store's end.
  virtual int64_t keep_cached(Duration patience) = 0;
  virtual bool keeps_prefixes() const = 0;

  virtual KvStoreStats stats() const = 0;

  // Makes pools in host memory resident, on this many threads, while the pools are in use. Without
  // it, each system page becomes resident when it is first written. `then` is called for each piece
  // on these threads, and is destroyed before the pools are. Call once, before threads share the
  // store.
  virtual void prefault(int num_threads, const Prefault::Then& then = {}) = 0;

  // The pools that other processes can map while the store lives; none without shares_memory. Bytes
  // that pin_in_place finds lie in one of them.
  virtual std::vector<const SharedMemory*> shared_pools() const = 0;
  // The device pool, if its memory is not the host's and other processes can map it.
  virtual std::optional<SharedDeviceMemory> shared_device_pool() const = 0;
};

// kInvalidArgument, with the numbers, if the host's budget is smaller than the records of the other
// tiers' pages. `clock` outlives the store. `device_memory`: the slots of the device tier, as many
// as fit config.device_bytes; without it they are in host memory.
Result<std::unique_ptr<KvStore>> make_kv_store(const KvStoreConfig& config, const Clock& clock,
                                               std::unique_ptr<SlotMemory> device_memory = nullptr);

}  // namespace millrace::kvstore
