// Memory for pages of a cache: equal slots that any page of any layer and kv head may take, fewer
// than there are pages if need be. A page that is wanted and is not here comes from a PageSource;
// the page that has been of least use leaves.
//
//   auto pages = pool.acquire(names, deadline);    // waits; they stay until `pages` goes
//   pool.bring(names, FetchUrgency::kPrediction, deadline);   // may as well come now
//
// Eviction: a page counts the steps (tokens) in which it was used, one of kHalfLife steps ago half as
// much, whether it was here meanwhile or not. The page with least leaves; of those within a factor of
// sqrt(2) the one whose layer is computed last from now on. So a pool that is smaller than what every
// token reads keeps most of it, where least recently used evicts what the next token reads first. What
// has come for this layer or the next stays until that has been computed.
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

// kLeastRecent is there to be compared with.
enum class Eviction { kLeastUsed, kLeastRecent };

// Of one layer, or of all. A page counts once each time it is acquired.
struct PoolCounts {
  int64_t hits = 0;       // was here when asked for
  int64_t predicted = 0;  // of them: had come by prediction and was wanted for the first time
  int64_t late = 0;       // was on its way
  int64_t misses = 0;     // was fetched because it was asked for

  int64_t asked() const { return hits + late + misses; }
  void add(const PoolCounts& other);
};

struct PoolStats {
  std::vector<PoolCounts> layers;
  // Fetched, by FetchUrgency.
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

  // Pages that stay where they are. The pool outlives it.
  class Pins {
   public:
    Pins() = default;
    Pins(Pins&& other) noexcept : pool_(other.pool_), slots_(std::move(other.slots_)) {
      other.slots_.clear();
    }
    Pins& operator=(Pins&& other) noexcept;
    ~Pins() { release(); }

    // Of the i-th name.
    const std::byte* page(size_t i) const;
    size_t size() const { return slots_.size(); }

   private:
    friend class PagePool;
    void release();

    PagePool* pool_ = nullptr;
    std::vector<int32_t> slots_;
  };

  // `source` outlives the pool. Memory is touched when pages come.
  PagePool(PageSource& source, const Options& options);

  int64_t num_slots() const { return options_.num_slots; }
  // Of uses from here on: the number of the token.
  void begin_step(int64_t step);
  // How much a page that nobody has used is worth keeping, against others that nobody has: the
  // share of attention that it had while the prompt was computed. All are 0 before.
  void set_score(const kvclient::PageName& name, float score);

  // Fetches what is not here and waits for what is on its way. kExhausted: there are fewer slots
  // than names, beside what others hold; else as the source says. Names are different.
  Result<Pins> acquire(std::span<const kvclient::PageName> names, Deadline deadline);
  // Fetches what is neither here nor on its way; in this order, as many as slots can be had for: the
  // slots of pages that are neither pinned nor named. Returns how many came. With kNeed these pages
  // count as misses when they are acquired next.
  Result<int64_t> bring(std::span<const kvclient::PageName> names, FetchUrgency urgency,
                        Deadline deadline);
  // The same into empty slots alone. Whether there is an empty slot left.
  Result<bool> fill(std::span<const kvclient::PageName> names, Deadline deadline);
  bool has(const kvclient::PageName& name) const;

  PoolStats stats() const;

 private:
  enum class State : uint8_t { kEmpty, kLoading, kHere };
  // How its page came, until that page is acquired for the first time.
  enum class News : uint8_t { kNone, kPredicted, kNeeded };
  struct Slot {
    int64_t page = -1;  // number of a page
    State state = State::kEmpty;
    News news = News::kNone;
    int32_t pins = 0;
  };
  // What is not here, of the names of an acquire().
  struct Search {
    std::vector<size_t> missing;
    bool waiting = false;  // for what is on its way
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
  // By which pages leave, the least first.
  struct Worth {
    double uses = 0;
    int32_t nearness = 0;
    auto operator<=>(const Worth&) const = default;
  };
  Worth worth(const Slot& slot) const;
  // Up to `count` slots that are empty or, where `evict`, that are pinned by nobody; they are marked
  // as loading and belong to the caller.
  std::vector<int32_t> take_slots(size_t count, bool evict);
  void give_back(int32_t slot);
  // Of pages that the caller has put into `slots`, in this order. Without the lock.
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
  // By number of page.
  std::vector<int32_t> slot_of_;    // -1: none
  std::vector<float> uses_;         // log2 of the uses, one of step s as 2^(s / kHalfLife)
  std::vector<int32_t> last_step_;  // of a use; -1: none
  std::vector<int64_t> last_use_;   // number of it, of kLeastRecent
  int32_t step_ = 0;
  int32_t layer_ = 0;  // that is being computed
  int64_t num_uses_ = 0;
  PoolStats stats_;
};

}  // namespace millrace::decode
