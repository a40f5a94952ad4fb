// SPDX-License-Identifier: Apache-2.0
// Memory for pages of a cache: equal slots that any page of any layer and kv head may take,
// possibly fewer than there are pages. A page that is wanted and not here comes from a PageSource,
// and the page of least use leaves.
//
//   auto pages = pool.acquire(names, deadline);    // waits; they stay until `pages` goes
//   pool.bring(names, FetchUrgency::kPrediction, deadline);   // may as well come now
//
// Eviction: a page counts the steps (tokens) in which it was used, a step kHalfLife ago half as
// much, whether the page was here meanwhile or not. The page with the lowest count leaves; among
// those within a factor of sqrt(2), the one whose layer will be computed last. So a pool that is
// smaller than what every token reads keeps most of it, whereas least recently used would evict
// what the next token reads first. Pages that came for this layer or the next stay until that layer
// has been computed.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "common/aligned_buffer.h"
#include "decode/pool/page_source.h"

namespace millrace::decode {

// kLeastRecent exists for comparison.
enum class Eviction { kLeastUsed, kLeastRecent };

// For one layer, or for all. A page counts once each time it is acquired.
struct PoolCounts {
  int64_t hits = 0;       // was here when asked for
  int64_t predicted = 0;  // of the hits: came by prediction and was wanted for the first time
  int64_t late = 0;       // was on its way
  int64_t misses = 0;     // was fetched because it was asked for

  int64_t asked() const { return hits + late + misses; }
  void add(const PoolCounts& other);
};

struct PoolStats {
  std::vector<PoolCounts> layers;
  // Pages fetched, by FetchUrgency.
  int64_t filled_pages = 0, predicted_pages = 0, needed_pages = 0;
  int64_t evictions = 0;
};

class PagePool {
 public:
  struct Options {
    int32_t num_layers = 0;
    int32_t first_kv_head = 0;  // of the model; names count so
    int32_t num_kv_heads = 0;
    int64_t num_pages = 0;  // of a layer and kv head
    int64_t page_bytes = 0;
    int64_t num_slots = 0;
    Eviction eviction = Eviction::kLeastUsed;
  };

  // Pages that stay in their slots while it lives. The pool outlives it.
  class Pins {
   public:
    Pins() = default;
    Pins(Pins&& other) noexcept : pool_(other.pool_), slots_(std::move(other.slots_)) {
      other.slots_.clear();
    }
    Pins& operator=(Pins&& other) noexcept;
    ~Pins() { release(); }

    // The page of the i-th name.
    const std::byte* page(size_t i) const;
    size_t size() const { return slots_.size(); }

   private:
    friend class PagePool;
    void release();

    PagePool* pool_ = nullptr;
    std::vector<int32_t> slots_;
  };

  // `source` outlives the pool. Memory is first touched when pages come.
  PagePool(PageSource& source, const Options& options);

  int64_t num_slots() const { return options_.num_slots; }
  // Uses from here on belong to this step, the number of the token.
  void begin_step(int64_t step);
  // How much an unused page is worth keeping compared with other unused pages: the share of
  // attention that it had while the prompt was computed. 0 until set.
  void set_score(const kvclient::PageName& name, float score);

  // Fetches what is not here and waits for what is on its way. kExhausted: not counting slots that
  // others hold, there are fewer slots than names; other errors are the source's. Names must
  // differ.
  Result<Pins> acquire(std::span<const kvclient::PageName> names, Deadline deadline);
  // Fetches what is neither here nor on its way, in this order, as far as there are slots: those of
  // pages that are neither pinned nor named. Returns how many came. With kNeed these pages count as
  // misses when they are next acquired.
  Result<int64_t> bring(std::span<const kvclient::PageName> names, FetchUrgency urgency,
                        Deadline deadline);
  // The same, but only into empty slots. Returns whether an empty slot is left.
  Result<bool> fill(std::span<const kvclient::PageName> names, Deadline deadline);
  bool has(const kvclient::PageName& name) const;

  PoolStats stats() const;

 private:
  enum class State : uint8_t { kEmpty, kLoading, kHere };
  // How a slot's page came, until that page is acquired for the first time.
  enum class News : uint8_t { kNone, kPredicted, kNeeded };
  struct Slot {
    int64_t page = -1;  // number of a page
    State state = State::kEmpty;
    News news = News::kNone;
    int32_t pins = 0;
  };
  // Which of the names of an acquire() are not here.
  struct Search {
    std::vector<size_t> missing;
    bool waiting = false;  // for pages on their way
  };
  Search pin_what_is_here(std::span<const kvclient::PageName> names, Pins& pins,
                          std::vector<bool>& late);
  void put(const kvclient::PageName& name, int32_t slot);
  int64_t number_of(const kvclient::PageName& name) const;
  std::byte* memory(int32_t slot);
  void use(int64_t page);
  int32_t layer_of(int64_t page) const {
    return static_cast<int32_t>(page / (options_.num_kv_heads * options_.num_pages));
  }
  // The order in which pages leave, the least first.
  struct Worth {
    double uses = 0;
    int32_t nearness = 0;
    auto operator<=>(const Worth&) const = default;
  };
  Worth worth(const Slot& slot) const;
  // Up to `count` slots that are empty or, if `evict`, not pinned. They are marked as loading and
  // belong to the caller.
  std::vector<int32_t> take_slots(size_t count, bool evict);
  void give_back(int32_t slot);
  // Loads pages that the caller has put into `slots`, in this order. Without the lock.
  Result<void> load(std::span<const kvclient::PageName> names, std::span<const int32_t> slots,
                    FetchUrgency urgency, Deadline deadline);
  PoolCounts& counts(const kvclient::PageName& name) {
    return stats_.layers[static_cast<size_t>(name.layer)];
  }

  const Options options_;
  PageSource& source_;
  AlignedBuffer memory_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::vector<int32_t> empty_;
  // By page number.
  std::vector<int32_t> slot_of_;    // -1: none
  std::vector<float> uses_;         // log2 of the uses; one in step s counts 2^(s / kHalfLife)
  std::vector<int32_t> last_step_;  // of the last use; -1: none
  std::vector<int64_t> last_use_;   // number of the last use, for kLeastRecent
  int32_t step_ = 0;
  int32_t layer_ = 0;  // being computed
  int64_t num_uses_ = 0;
  PoolStats stats_;
};

}  // namespace millrace::decode
