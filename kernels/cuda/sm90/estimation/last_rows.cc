// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/last_rows.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::kernels::cuda {

std::vector<HeadGroup> group_heads(std::span<const int32_t> heads, int32_t num_query_heads,
                                   int32_t num_kv_heads) {
  const int32_t heads_per_kv_head = num_query_heads / num_kv_heads;
  std::vector<HeadGroup> groups;
  for (int32_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    HeadGroup group = {.kv_head = kv_head};
    for (size_t number = 0; number < heads.size(); ++number) {
      if (heads[number] / heads_per_kv_head != kv_head) continue;
      if (group.num_heads == kGroupHeads) {
        groups.push_back(group);
        group = {.kv_head = kv_head};
      }
      group.heads[group.num_heads] = heads[number];
      group.numbers[group.num_heads] = static_cast<int32_t>(number);
      ++group.num_heads;
    }
    if (group.num_heads > 0) groups.push_back(group);
  }
  return groups;
}

int32_t max_heads(std::span<const HeadGroup> groups) {
  int32_t count = 0;
  for (const HeadGroup& group : groups) count = std::max(count, group.num_heads);
  return count;
}

void check_slab(const KvSlab& kv, int32_t num_query_heads) {
  MR_CHECK(kv.dtype != DType::kFloat32, "estimation of {} on cuda", dtype_name(kv.dtype));
  MR_CHECK(kv.head_dim == 64 || kv.head_dim == 128 || kv.head_dim == 256,
           "estimation: head_dim {} on cuda", kv.head_dim);
  MR_CHECK(kv.num_kv_heads > 0 && num_query_heads % kv.num_kv_heads == 0,
           "{} query heads over {} kv heads", num_query_heads, kv.num_kv_heads);
  MR_CHECK(kv.num_tokens > 0 && kv.num_tokens <= kv.token_stride, "{} tokens at stride {}",
           kv.num_tokens, kv.token_stride);
}

}  // namespace millrace::kernels::cuda
