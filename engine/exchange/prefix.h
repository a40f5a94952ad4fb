// SPDX-License-Identifier: Apache-2.0
// The cached prefix of a prompt: its first full pages, whose K and V an earlier prompt computed.
// The engine computes only the rows behind it; attention, the index and scores see all keys.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv_scales.h"
#include "common/page_tokens.h"
#include "common/result.h"

namespace millrace::engine {

// The number of chunks in which context-parallel ranks send each other a layer's pages, if the
// pages lie on the ranks in equal parts. It is small, since a collective among GPUs takes tens of
// microseconds however little it moves. Four chunks are slower than two on four GPUs, and one chunk
// is slower on two GPUs (docs/notebook/prefix-on-gpus.md).
inline constexpr int64_t kPrefixChunks = 2;

struct PromptPrefix {
  // The context-parallel rank that holds each page, in the order of the prompt. It holds the page
  // with all kv heads, spread over its tensor-parallel ranks. The same on all ranks.
  std::vector<int> owners;
  // The scales of pages in 8-bit floats, for all layers and kv heads of the model; outlive the
  // prompt. Null: pages are in the compute dtype.
  const KvScales* float8 = nullptr;

  int64_t num_pages() const { return std::ssize(owners); }
  int64_t num_tokens() const { return num_pages() * kPageTokens; }
  // The pages that `rank` holds, ascending.
  std::vector<int64_t> pages(int rank) const {
    std::vector<int64_t> held;
    for (int64_t page = 0; page < num_pages(); ++page) {
      if (owners[static_cast<size_t>(page)] == rank) held.push_back(page);
    }
    return held;
  }
};

// Where rows go, in device memory.
struct KvPlace {
  void* k = nullptr;  // [kv heads of this rank, stride, head_dim]
  void* v = nullptr;
  int64_t stride = 0;  // rows
};

// Where a rank's cached pages come from.
class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  // Has the device copy K and V of pages [first, first + count), counted among those that this rank
  // holds, to the first rows of `to`, in the order of its operations. Called for the layers in
  // order. After an error (kCorrupt, kIo) the rows may hold anything.
  virtual Result<void> load(int32_t layer, int64_t first, int64_t count, const KvPlace& to) = 0;
  // The same without decoding: 8-bit floats, where the prefix is in 8-bit floats.
  virtual Result<void> load_stored(int32_t layer, int64_t first, int64_t count, const KvPlace& to) {
    return load(layer, first, count, to);
  }
};

}  // namespace millrace::engine
