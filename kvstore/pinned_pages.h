// SPDX-License-Identifier: Apache-2.0
// Pages of a KV store that are held in place while somebody reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "kvstore/pages/page.h"

namespace millrace::kvstore {

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

}  // namespace millrace::kvstore
