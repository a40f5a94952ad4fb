// SPDX-License-Identifier: Apache-2.0
// All pages of a rank's cache in one piece of memory, by layer, kv head and page. Each comes once
// from a PageSource, when somebody asks for it, and stays. The places of pages that are not kept
// stay empty. A device's slots are filled from this memory.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "decode/pool/page_source.h"

namespace millrace::decode {

class HostPages {
 public:
  struct Options {
    int32_t num_layers = 0;
    int32_t first_kv_head = 0;  // of the model; names count so
    int32_t num_kv_heads = 0;
    int64_t num_pages = 0;  // of a layer and kv head
    int64_t page_bytes = 0;
    std::byte* memory = nullptr;  // for all pages; outlives this object
    int64_t num_kept = 0;         // of all pages; no others are asked for
  };

  // `source` outlives this object.
  HostPages(PageSource& source, const Options& options);

  // Fetches the pages that are neither here nor on their way, and waits for all of the names. What
  // failed for another caller is fetched again.
  Result<void> bring(std::span<const kvclient::PageName> names, FetchUrgency urgency,
                     Deadline deadline);
  bool has_all() const;
  int64_t page_bytes() const { return options_.page_bytes; }
  int64_t num_needed() const;  // that came with kNeed

 private:
  enum class State : uint8_t { kAbsent, kComing, kHere };
  size_t number_of(const kvclient::PageName& name) const;
  Result<void> fetch(std::span<const kvclient::PageName> names, FetchUrgency urgency,
                     Deadline deadline);

  const Options options_;
  PageSource& source_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;
  int64_t num_missing_;
  int64_t num_needed_ = 0;
};

}  // namespace millrace::decode
