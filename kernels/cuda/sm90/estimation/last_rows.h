// How the last rows of a prompt are dealt to thread blocks: what the probe and the page scores
// share on the host's side.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/estimation.h"

namespace millrace::kernels::cuda {

// Heads that one block handles, a warpgroup each, so that a key is fetched once for them.
inline constexpr int kGroupHeads = 2;

// Keys that one block handles. A function of nothing, so that the order of every sum depends on the
// prompt's length alone: ranks that share the heads get the same bits.
inline constexpr int64_t kChunkKeys = 1024;

// Heads of the call that read one kv head. `numbers` are their places in the call's `heads`.
struct HeadGroup {
  int32_t kv_head = 0;
  int32_t num_heads = 0;
  int32_t heads[kGroupHeads] = {};
  int32_t numbers[kGroupHeads] = {};
};

// In order of kv heads.
std::vector<HeadGroup> group_heads(std::span<const int32_t> heads, int32_t num_query_heads,
                                   int32_t num_kv_heads);

// Heads of the largest group: warpgroups that a block needs.
int32_t max_heads(std::span<const HeadGroup> groups);

// Shapes that do not fit are a bug of the caller.
void check_slab(const KvSlab& kv, int32_t num_query_heads);

}  // namespace millrace::kernels::cuda
