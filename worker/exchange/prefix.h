// The part of a prompt whose K and V are known already: its first full pages, which an earlier prompt
// computed. The engine computes the rows behind it alone; attention, the index and scores see
// all keys.
#pragma once

#include <cstdint>
#include <vector>

#include "common/page_tokens.h"
#include "common/pages/kv_scales.h"
#include "common/result.h"

namespace millrace::worker {

// Pieces in which context-parallel ranks send each other a layer's pages, where these lie on the ranks in equal
// parts. Few, since a collective among GPUs takes tens of microseconds however little it moves: four are slower than
// two on four GPUs, and one on two (docs/notebook/prefix-on-gpus.md).
inline constexpr int64_t kPrefixChunks = 2;

struct PromptPrefix {
  // The context-parallel rank that holds each page, in the order of the prompt; with all its kv heads,
  // and so for each tensor-parallel rank. The same on all ranks.
  std::vector<int> owners;
  // Of pages of 8-bit floats: of all layers and kv heads of the model; outlive the prompt. Others are in the compute
  // dtype.
  const KvScales* float8 = nullptr;

  int64_t num_pages() const { return std::ssize(owners); }
  int64_t num_tokens() const { return num_pages() * kPageTokens; }
  // Those that `rank` holds, ascending.
  std::vector<int64_t> pages(int rank) const {
    std::vector<int64_t> held;
    for (int64_t page = 0; page < num_pages(); ++page) {
      if (owners[static_cast<size_t>(page)] == rank) held.push_back(page);
    }
    return held;
  }
};

// Where rows go: device memory.
struct KvPlace {
  void* k = nullptr;  // [kv heads of this rank, stride, head_dim]
  void* v = nullptr;
  int64_t stride = 0;  // rows
};

// A rank's cached pages.
class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  // Has the device copy K and V of pages [first, first + count), of those that this rank holds, to
  // the first rows of `to`, in the order of its operations. Called for the layers in order. An error
  // (kCorrupt, kIo) leaves anything there.
  virtual Result<void> load(int32_t layer, int64_t first, int64_t count, const KvPlace& to) = 0;
  // The same, but as the pages have them: 8-bit floats, where the prefix is of such.
  virtual Result<void> load_stored(int32_t layer, int64_t first, int64_t count, const KvPlace& to) {
    return load(layer, first, count, to);
  }
};

}  // namespace millrace::worker
