// The KV cache a rank holds for finished and running requests: pages in three tiers, leases over
// them.
//
// A page is 64 tokens of one layer and one kv head: K [64, head_dim] then V [64, head_dim]. All
// pages of all layers and requests of equal size live in one pool of equal slots per tier (PSA's
// unified pool): device (on the CPU backend a budgeted region of its own, so that the logic is the
// same), host, disk. The life of a request:
//
//   begin_request   reserves room for every page over all tiers, or refuses with the numbers
//   open            where a reader is not to wait for the end: each layer may be pinned as soon
//                   as it is complete, written and scored
//   write_pages     as each layer finishes: into a device slot, and written through to host as far
//                   as its budget goes, so that those device copies are clean and evicting them is
//                   a rebind
//   set_scores      of that layer's pages; decides what stays when the device pool is short
//   drop_pages      where a smaller cache is asked for: pages that nobody is to read
//   seal            placement of the whole; from now on only pin_pages and pin_digests, until the
//                   lease ends
//   remember        where later prompts may begin with the same pages: these stay under the key of
//                   their content when the request is gone, until room is needed
//   release | expire | abort
//
// A request may begin with pages that the store remembers: it holds them, as it does its own, and no
// copy is made.
//
// Placement: what lies in faster memory is decided by attention (placement.h): sinks, the recent
// window, the first layers, then pages by score until the head's mass or the byte budget is
// reached; a page that is pulled often counts more. All requests compete by the same rule. At seal
// and in tend(), a page on disk takes the place of one on the host that is worth much less, never of
// a pinned one. The store drops nothing of its own accord: cold means slower.
//
// Threads: every method may be called from any thread. pin_pages may read the disk or a GPU;
// pin_in_place, pin_digests and scores read nothing.
// Errors: kExhausted (begin_request; pin_pages, while other readers hold the memory to read into),
// kInvalidArgument (pages that do not ascend), kNotFound (unknown request, page outside it, expired or
// foreign lease: the message says which), kUnavailable (a page of an open request that is not
// complete yet), kCorrupt (a page read back from disk that does not match its checksum), kIo.
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
#include "kvstore/pages/page.h"
#include "kvstore/pages/read_totals.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::kvstore {

// Eight of the largest replies of a KV server.
inline constexpr int64_t kDefaultReadBytes = int64_t{512} << 20;

// A layer of 131,072 tokens of an 8B model on two ranks.
inline constexpr int64_t kDefaultReadAheadBytes = int64_t{256} << 20;

// For how long check_cached reads what was kept, of who does not say.
inline constexpr Duration kDefaultKeptPatience = std::chrono::seconds(10);

// Budgets of the tiers, taken once, at construction (disk: as it is used).
struct KvStoreConfig {
  int64_t device_bytes = 0;
  // Also of the records (digest and entry) of all pages that the three tiers can hold, a twentieth
  // of 16-bit pages; what these leave holds pages.
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  std::string disk_directory;  // empty: no disk tier
  // Whether the pools in host memory can be mapped by other processes that are given leave
  // (shared_pools).
  bool shares_memory = false;
  // Host memory beside the pools, for pinned pages that had to be read: those on disk, and
  // those of a device whose memory is not the host's.
  int64_t read_bytes = kDefaultReadBytes;
  // Host memory beside the pools, for pages on disk that are read before a reader asks for them. 0:
  // none are.
  int64_t read_ahead_bytes = kDefaultReadAheadBytes;
  // Whether seal() moves the best pages to the device. Not to a GPU's memory, where each move crosses the
  // bus: there a page that is written takes the slot of one that carries no mass.
  bool promotes = true;
  // Disk space, beside disk_bytes, for cached prefixes that outlive the process. 0: none do.
  int64_t kept_bytes = 0;
  std::string kept_directory;
  std::string kept_name;  // of the files, one process at a time
  std::string
      kept_identity;    // what the pages are of besides the geometry: files of another are emptied
  KvGeometry geometry;  // of the one model this rank serves
};

// A page of a prompt by what is in it.
struct CachedPage {
  int64_t page = 0;
  PageContentKey key{};
};

// first_page, first_page + 1, ...
inline std::vector<int64_t> consecutive_pages(int64_t first_page, int64_t num_pages) {
  std::vector<int64_t> pages(static_cast<size_t>(num_pages));
  // Unsigned, so that numbers from the network may overflow.
  auto next = static_cast<uint64_t>(first_page);
  for (int64_t& page : pages) page = static_cast<int64_t>(next++);
  return pages;
}

// A page held in place for reading. `bytes` is valid while the PinnedPages lives.
struct PinnedPage {
  std::span<const std::byte> bytes;
  // With pin_in_place, where `bytes` is empty: a copy of the page in host memory that is not held
  // there. It may be overwritten at any time: what is read of it counts once its checksum is right.
  std::span<const std::byte> loose_bytes;
  // Where `bytes` is empty: where operations of this process' device find the page; not for the host.
  const std::byte* device_bytes = nullptr;
  // In shared_device_pool(), where the page is held there; -1: it is not.
  int64_t device_offset = -1;
  std::span<const float> digest;  // [3, head_dim]: min, max, radius
  uint64_t checksum = 0;
  float score = 0;
  Tier tier = Tier::kDevice;
};

// A page where it lies.
struct PageCopy {
  // page_bytes() of them, in host memory; null: it is on other tiers alone.
  const std::byte* bytes = nullptr;
  uint64_t checksum = 0;
};

// The pages that a request began with. Destroying it lets go of them.
class HeldPrefix {
 public:
  virtual ~HeldPrefix() = default;
  // [pages, layers, kv heads]. They stay where they are, but for the host's copy of a page that is in a GPU's memory
  // too: what is read of it counts once its checksum is right.
  virtual std::span<const PageCopy> copies() const = 0;
};

// Pages of one layer and kv head. Destroying it unpins.
class PinnedPages {
 public:
  virtual ~PinnedPages() = default;
  virtual std::span<const PinnedPage> pages() const = 0;
  // Reads the pages whose bytes are empty. kExhausted, kCorrupt, kIo: of no use any more.
  virtual Result<void> load() = 0;
  // A reader copies the pages, by their place in pages(), out of shared pools itself, though their bytes
  // are empty: they count as pulled.
  virtual void count_copied(std::span<const size_t> pages) = 0;
};

struct TierUse {
  int64_t slots_total = 0;
  int64_t slots_used = 0;
  int64_t slots_cached = 0;  // of these, of pages that are remembered
  int64_t slot_bytes = 0;
};

// Pages that were remembered and gave way, by what for.
struct CacheEvictions {
  int64_t for_requests = 0;  // in the tiers, to the pages of a request
  int64_t for_kept = 0;      // in the tiers, to kept ones that a request was to begin with
  int64_t in_files = 0;      // kept ones, to others that were to be kept

  int64_t total() const { return for_requests + for_kept + in_files; }
};

struct KvStoreStats {
  PerTier<TierUse> tiers;
  int64_t pages_available = 0;    // that a request which begins now may have
  int64_t cached_pages = 0;       // under a key, whether requests hold them or not
  int64_t idle_cached_pages = 0;  // of these, held by none
  // Since start, pages that were remembered and gave way, in the tiers or among the kept ones; and columns that did not
  // match their checksum.
  CacheEvictions cache_evictions;
  int64_t cache_corruptions = 0;
  // Since start, pages on slow tiers that gave their key to ones that a request computed again, since that was faster.
  int64_t cache_replacements = 0;
  double eviction_clock = 0;  // what gave way was worth at most (advance_eviction_clock)
  // Since start: pages on disk, read to be checked before requests began with them, and kept ones.
  ReadTotals disk_checks;
  ReadTotals kept_reads;
  int64_t kept_pages = 0;      // on disk for the next process, whether they are in the tiers or not
  int64_t kept_bytes = 0;      // that these take
  int64_t pages_kept = 0;      // written there since start
  int64_t pages_restored = 0;  // read from there since start
  int64_t late_restores = 0;   // since start, how often time was up before all were
  int64_t requests = 0;        // held
  int64_t leases_active = 0;
  int64_t leases_expired = 0;  // since start
  int64_t pages_written = 0;
  int64_t pages_dropped = 0;   // by drop_pages
  PerTier<int64_t> page_hits;  // pins served from each tier
  int64_t evictions = 0;       // device slots given up
  // Copies of pages from tier to tier: [from][to]. Those that need none, since there is another copy,
  // do not count.
  PerTier<PerTier<int64_t>> moves;
  int64_t read_ahead_pages = 0;  // read from disk before anyone asked
  int64_t read_ahead_hits = 0;   // of these, pinned
  int64_t pinned_pages = 0;      // now
};

// Pages of one request per tier, as placed by seal(); without those that it dropped.
struct Placement {
  PerTier<int64_t> pages;
};

// Which copies of cached pages are compared with their checksums.
enum class CacheCheck {
  kAll,
  kDisk,  // of pages that lie on disk alone
};

// Where a page that the store remembers lies, in all layers and kv heads: what is not on disk or kept is in memory.
struct CachedPlace {
  bool held = false;  // remembered or kept; the others say nothing where it is not
  bool kept = false;  // in the files that outlive the process alone
  double share_on_disk = 0;
};

// Bytes a second, of pages that are read with their checksums (kvstore/kept/read_meter.h).
struct ReadRates {
  double disk = 0;
  double kept = 0;
};

class KvStore {
 public:
  virtual ~KvStore() = default;

  virtual const KvGeometry& geometry() const = 0;

  // `pages`: the prompt's pages this rank is to compute, ascending, the same for every layer and kv
  // head. `prefix`: pages before these, ascending, that the store remembers: the request holds them
  // as if it had written them; kUnavailable names the first that is gone. Where room is lacking, idle
  // pages that the store remembers give way.
  virtual Result<void> begin_request(const std::string& request_id, int64_t num_tokens,
                                     std::span<const int64_t> pages,
                                     std::span<const CachedPage> prefix) = 0;
  Result<void> begin_request(const std::string& request_id, int64_t num_tokens,
                             std::span<const int64_t> pages) {
    return begin_request(request_id, num_tokens, pages, {});
  }
  // Opens a request that is being written: whoever names `lease_id` may read its complete pages
  // from now on. That lease has no end of its own until seal() gives it one; abort() ends it.
  virtual Result<void> open(const std::string& request_id, const std::string& lease_id) = 0;
  // Pages of one layer and kv head, by ascending number. `kv`: geometry.page_bytes() each, one after the
  // other; copied. Each page of the request exactly once. On an error those that could not be copied,
  // or all of them, are still to be written.
  virtual Result<void> write_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                                   std::span<const int64_t> pages, std::span<const std::byte> kv,
                                   const PageDigest& digests) = 0;
  Result<void> write_page(const std::string& request_id, const PageKey& key,
                          std::span<const std::byte> kv, const PageDigest& digest) {
    return write_pages(request_id, key.layer, key.kv_head, std::span(&key.page, 1), kv, digest);
  }
  // Scores of the rank's pages of one layer and kv head, those of the prefix first, in the order
  // given to begin_request. Those that are written are complete with it.
  virtual Result<void> set_scores(const std::string& request_id, int32_t layer, int32_t kv_head,
                                  std::span<const float> scores) = 0;
  // The same of all layers and kv heads, of a request that has no pages on this rank but those that it began with:
  // [layers, kv heads, pages]. The pages keep the worth that they have for earlier requests.
  virtual Result<void> set_prefix_scores(const std::string& request_id,
                                         std::span<const float> scores) = 0;
  // Of a request that is written and not open: these pages of one layer and kv head, which ascend, are
  // no part of it any more, and their slots are free, but for those of pages that others hold too. Readers
  // get kNotFound for them; scores() still says what they were worth. Such a request is not remembered.
  virtual Result<void> drop_pages(const std::string& request_id, int32_t layer, int32_t kv_head,
                                  std::span<const int64_t> pages) = 0;
  // All pages must be written. The request may be read from now on by who names `lease_id`, the one
  // it was opened with if it was, until the lease ends.
  virtual Result<Placement> seal(const std::string& request_id, const std::string& lease_id,
                                 Duration lease) = 0;
  // Keeps pages of a sealed request under these keys when it is gone; where one is known already,
  // the page that has it stays, unless nobody holds it and more of it is on disk. Returns how many pages of the prompt
  // are new. `cost`: what the prompt takes to compute, by the page of all layers and heads, 1 for one with
  // nothing before it; what all its remembered pages are worth follows from it (kvstore/rules/retention.h).
  // kNotFound: the request is gone, or a page is not its. kInvalidArgument: it has dropped pages.
  virtual Result<int64_t> remember(const std::string& request_id, std::span<const CachedPage> pages,
                                   double cost) = 0;
  Result<int64_t> remember(const std::string& request_id, std::span<const CachedPage> pages) {
    return remember(request_id, pages, /*cost=*/1);
  }
  // What is used from here on is worth more than what gave way before (KvStoreStats::eviction_clock). Stores that are to
  // give up the same pages are told the same, between the same two requests. The clock never goes back.
  virtual void advance_eviction_clock(double clock) = 0;
  // Which of these pages this rank remembers, or has kept.
  virtual std::vector<bool> find_cached(std::span<const PageContentKey> keys) const = 0;
  // Where they lie, kept ones while their files answer, and how fast they came of late from where reading takes time.
  virtual std::vector<CachedPlace> place_cached(std::span<const PageContentKey> keys) const = 0;
  virtual ReadRates read_rates() const = 0;
  // As find_cached, but for those that turn out damaged, in any layer or head: they are forgotten. Reads
  // all that `check` says, and brings those that are only kept into the tiers, all of which is checked; where there is no
  // room, one is damaged, or `kept_patience` is over, those behind it are not brought.
  virtual std::vector<bool> check_cached(std::span<const PageContentKey> keys,
                                         CacheCheck check = CacheCheck::kAll,
                                         Duration kept_patience = kDefaultKeptPatience) = 0;
  // Pages that a request which is being written began with, for who computes the rest: no lease, and
  // no pull that counts. Otherwise as pin_in_place.
  virtual Result<std::unique_ptr<PinnedPages>> pin_prefix(const std::string& request_id,
                                                          int32_t layer, int32_t kv_head,
                                                          std::span<const int64_t> pages) = 0;
  // The same pages, all that it began with in all layers and heads: for who reads them elsewhere.
  virtual Result<std::unique_ptr<HeldPrefix>> hold_prefix(const std::string& request_id) = 0;
  // Forgets a request in any state (cancelled, failed). Pinned pages stay valid until unpinned, and
  // what the store remembers stays.
  virtual void abort(const std::string& request_id) = 0;

  // `pages`: of the prompt, ascending, one at least.
  virtual Result<std::unique_ptr<PinnedPages>> pin_pages(const std::string& request_id,
                                                         const std::string& lease_id, int32_t layer,
                                                         int32_t kv_head,
                                                         std::span<const int64_t> pages) = 0;
  // The same without reading, which load() does: until then `bytes` of pages that host memory does
  // not hold are empty.
  virtual Result<std::unique_ptr<PinnedPages>> pin_in_place(const std::string& request_id,
                                                            const std::string& lease_id,
                                                            int32_t layer, int32_t kv_head,
                                                            std::span<const int64_t> pages) = 0;
  // What is known of these pages, for who does not need their bytes.
  virtual Result<std::unique_ptr<PinnedPages>> pin_digests(const std::string& request_id,
                                                           const std::string& lease_id,
                                                           int32_t layer, int32_t kv_head,
                                                           std::span<const int64_t> pages) = 0;
  // Scores of all pages this rank holds of these heads, [layers, kv heads, pages]. Under the same
  // lease, and as pages that are not complete yet are refused.
  virtual Result<std::vector<float>> scores(const std::string& request_id,
                                            const std::string& lease_id,
                                            const HeadBlock& heads) const = 0;

  // Whether there is a lease of this id by which something may be read: in a time that does not tell
  // how much of a guess was right.
  virtual bool knows_lease(std::string_view lease_id) const = 0;

  // `waited`: since it was asked for. A lease that had not ended then is renewed, until expire_leases() has ended it.
  virtual Result<void> renew_lease(const std::string& request_id, const std::string& lease_id,
                                   Duration lease, Duration waited) = 0;
  virtual Result<void> release_lease(const std::string& request_id,
                                     const std::string& lease_id) = 0;
  // Ends leases that are over; called about once a second by the owner. Returns how many ended.
  virtual int64_t expire_leases() = 0;

  // Brings pages nearer to those who will read them, a page at a time: reads ahead of readers, and
  // moves the best pages on disk into memory, where they take the places of pages worth much less. Then keeps what is
  // remembered and not yet kept, a page in all layers and heads at a time, and brings what earlier processes kept into
  // free memory.
  // Called over and over by a thread of the owner's. Returns whether there was anything to do, at
  // `deadline` at the latest where there was not, or where the disk that pages are kept on has not taken one; a read of those
  // pages is waited for a second, once, if it does not return.
  virtual bool tend(Deadline deadline) = 0;

  // Before the process ends in good order: pages that later ones may begin with are written where they outlive it. Returns
  // when `patience` is over, whatever the disk does: how many are not. A write that hangs then is left, with the store too.
  virtual int64_t keep_cached(Duration patience) = 0;
  virtual bool keeps_prefixes() const = 0;

  virtual KvStoreStats stats() const = 0;

  // Makes pools in host memory resident on so many threads, while they are used; otherwise each page of
  // the system becomes so when it is first written. `then` is told of it piece by piece, on these threads,
  // and goes before the pools do. Once, before the store is shared by threads.
  virtual void prefault(int num_threads, const Prefault::Then& then = {}) = 0;

  // The pools that other processes can map, as long as the store lives: none without
  // shares_memory. Bytes that pin_in_place finds lie in one of them.
  virtual std::vector<const SharedMemory*> shared_pools() const = 0;
  // The device pool, where its memory is not the host's and other processes can map it.
  virtual std::optional<SharedDeviceMemory> shared_device_pool() const = 0;
};

// kInvalidArgument, with the numbers, where the host's budget is less than the records of the
// others' pages. `clock` outlives the store. `device_memory`: the slots of the device tier, as many
// as fit config.device_bytes; without it they are in host memory.
Result<std::unique_ptr<KvStore>> make_kv_store(const KvStoreConfig& config, const Clock& clock,
                                               std::unique_ptr<SlotMemory> device_memory = nullptr);

}  // namespace millrace::kvstore
