// A prompt's pages in the store of this rank, from the room made for them before the first layer to
// the lease in the end. Pages of a prompt that came to no good end are forgotten with this.
// A rank whose kv heads another stores has none. The engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/pages/kept_pages.h"
#include "worker/staging/page_reader.h"
#include "worker/staging/page_writer.h"
#include "worker/staging/store_prefix.h"
#include "worker/staging/store_sink.h"

namespace millrace::worker {

class PromptPages {
 public:
  // Device, store, writer and reader outlive it. `pages`: those of the prompt that this rank computes;
  // `prefix`: those before them that it has cached.
  PromptPages(kernels::Device& device, kvstore::KvStore& store, PageWriter& writer,
              PageReader& reader, std::string request_id, std::vector<int64_t> pages,
              std::vector<kvstore::CachedPage> prefix = {});
  PromptPages(const PromptPages&) = delete;
  PromptPages& operator=(const PromptPages&) = delete;
  ~PromptPages();

  // Makes room. kInvalidArgument where the id is held: the holder's pages stay. kUnavailable where a
  // page of the prefix is gone.
  Result<void> begin(int64_t num_tokens);
  // Whoever has the lease may read each layer once it is complete.
  Result<void> open(const std::string& lease_id);
  // Where the layers go, once there is room.
  StoreSink& sink() { return *sink_; }
  // Where those of the prefix come from.
  StorePrefix& prefix() { return *prefix_source_; }
  // Of written ones, those that are not kept are no part of the prompt's cache any more.
  Result<void> drop_all_but(const KeptPages& kept);
  // Places them for good, readable until the lease ends. They stay only if keep() follows: another
  // rank may fail here.
  Result<kvstore::Placement> seal(const std::string& lease_id, Duration lease);
  void keep() { forgets_ = false; }
  // Of the prompt, that are on this rank: ascending.
  std::vector<int64_t> numbers() const;
  // Of sealed ones: those of the first `keys.size()` pages of the prompt that this rank computed, for
  // later prompts; `cost` as of KvStore::remember.
  Result<void> remember(std::span<const PageContentKey> keys, double cost);

 private:
  kvstore::KvStore& store_;
  const std::string request_id_;
  const std::vector<int64_t> pages_;
  const std::vector<kvstore::CachedPage> prefix_;
  StorePins pins_;
  std::optional<StorePrefix> prefix_source_;
  bool forgets_ = false;  // from begin() on
  std::optional<StoreSink> sink_;
};

}  // namespace millrace::worker
