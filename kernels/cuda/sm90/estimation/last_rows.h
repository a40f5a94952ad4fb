// SPDX-License-Identifier: Apache-2.0
// How the last rows of a prompt are divided among thread blocks: the host code that last_row_sums and
// the page scores share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/estimation.h"

namespace millrace::kernels::cuda {

// Heads that one block handles, one warpgroup each, so that a key is fetched once for all of them.
inline constexpr int kGroupHeads = 2;

// Keys that one block handles. It is a constant, so that the order of every sum depends only on the
// prompt's length: ranks that share the heads get the same bits.
inline constexpr int64_t kChunkKeys = 1024;

// Heads of the call that read the same kv head. `numbers` are their indices in the call's `heads`.
struct HeadGroup {
  int32_t kv_head = 0;
  int32_t num_heads = 0;
  int32_t heads[kGroupHeads] = {};
  int32_t numbers[kGroupHeads] = {};
};

// In order of kv heads.
std::vector<HeadGroup> group_heads(std::span<const int32_t> heads, int32_t num_query_heads,
                                   int32_t num_kv_heads);

// The number of heads of the largest group, which is the number of warpgroups that a block needs.
int32_t max_heads(std::span<const HeadGroup> groups);

// Checks the shape; an unsupported one is a bug of the caller.
void check_slab(const KvSlab& kv, int32_t num_query_heads);

}  // namespace millrace::kernels::cuda
