// SPDX-License-Identifier: Apache-2.0
// What happens to the group's cached pages, in the terms of vLLM's KV cache events
// (docs/kv-events.md): a page of 64 tokens is a block, the key of its content is its hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/content/page_keys.h"

namespace millrace::worker {

// The last 8 bytes of a page's key, big-endian: vLLM and its followers shorten a SHA-256 this way,
// and Dynamo does not read longer ones.
using BlockHash = uint64_t;

inline BlockHash block_hash(const PageContentKey& key) {
  BlockHash hash = 0;
  for (size_t i = key.size() - sizeof hash; i < key.size(); ++i) {
    hash = hash << 8 | std::to_integer<BlockHash>(key[i]);
  }
  return hash;
}

// Consecutive pages of a prompt that were not cached before.
struct BlocksStored {
  std::vector<BlockHash> hashes;
  std::optional<BlockHash> parent;  // of the page before them; none: they begin the prompt
  std::vector<int32_t> token_ids;   // 64 for each page
  std::string cache_salt;           // the request's, where they begin the prompt

  bool operator==(const BlocksStored&) const = default;
};

struct BlocksRemoved {
  std::vector<BlockHash> hashes;

  bool operator==(const BlocksRemoved&) const = default;
};

// Nothing is cached.
struct AllBlocksCleared {
  bool operator==(const AllBlocksCleared&) const = default;
};

using KvEvent = std::variant<BlocksStored, BlocksRemoved, AllBlocksCleared>;

}  // namespace millrace::worker
