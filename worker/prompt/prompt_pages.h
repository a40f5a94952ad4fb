// SPDX-License-Identifier: Apache-2.0
// A prompt's pages in this rank's store, from the room made for them before the first layer to the
// lease at the end. The destructor forgets the pages of a prompt that failed. A rank whose kv heads
// another rank stores has no PromptPages. The engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/kept_pages.h"
#include "kvstore/kv_store.h"
#include "worker/staging/page_reader.h"
#include "worker/staging/page_writer.h"
#include "worker/staging/store_prefix.h"
#include "worker/staging/store_sink.h"

namespace millrace::worker {

class PromptPages {
 public:
  // Device, store, writer and reader outlive it. `pages`: the prompt's pages that this rank
  // computes. `prefix`: the pages before them that this rank has cached.
  PromptPages(kernels::Device& device, kvstore::KvStore& store, PageWriter& writer,
              PageReader& reader, std::string request_id, std::vector<int64_t> pages,
              std::vector<kvstore::CachedPage> prefix = {});
  PromptPages(const PromptPages&) = delete;
  PromptPages& operator=(const PromptPages&) = delete;
  ~PromptPages();

  // Makes room. kInvalidArgument where another request has this id; its pages stay. kUnavailable
  // where a page of the prefix is gone.
  Result<void> begin(int64_t num_tokens);
  // From now on the holder of the lease may read each layer once it is complete.
  Result<void> open(const std::string& lease_id);
  // Where the layers go, once there is room.
  StoreSink& sink() { return *sink_; }
  // Where the pages of the prefix come from.
  StorePrefix& prefix() { return *prefix_source_; }
  // Between two layers. Waits for reads and writes under way: until the next layer, the writer and
  // the reader may serve another prompt.
  Result<void> settle();
  // Call it once the pages are written. Those that are not in `kept` leave the prompt's cache.
  Result<void> drop_all_but(const KeptPages& kept);
  // Places the pages for good, readable until the lease ends. They stay only if keep() follows,
  // since another rank may fail at this step.
  Result<kvstore::Placement> seal(const std::string& lease_id, Duration lease);
  void keep() { forgets_ = false; }
  // The prompt's pages that are on this rank, ascending.
  std::vector<int64_t> numbers() const;
  // Call it once the pages are sealed. Of the first `keys.size()` pages of the prompt, remembers
  // those that this rank computed, for later prompts. `cost` and `prompt` as of RequestWriter::remember.
  Result<void> remember(std::span<const PageContentKey> keys, double cost,
                        std::shared_ptr<const kvstore::CachedPrompt> prompt = nullptr);

 private:
  kvstore::KvStore& store_;
  const std::string request_id_;
  const std::vector<int64_t> pages_;
  const std::vector<kvstore::CachedPage> prefix_;
  StorePins pins_;
  std::optional<StorePrefix> prefix_source_;
  bool forgets_ = false;  // true from begin() to keep()
  std::optional<StoreSink> sink_;
};

}  // namespace millrace::worker
