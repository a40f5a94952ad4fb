// SPDX-License-Identifier: Apache-2.0
// The cache that gpu_stored_rank serves and its test expects: pages of 32 KiB, as for Llama 3 8B.
#pragma once

#include "tests/unit/kvclient/fake_ranks.h"

namespace millrace::test {

inline FakeRanks::Options gpu_rank_cache(int32_t num_layers, int64_t num_tokens) {
  return {.num_layers = num_layers,
          .num_kv_heads = 4,
          .head_dim = 128,
          .dtype = DType::kBFloat16,
          .num_tokens = num_tokens,
          .tp = 1,
          .cp = 1};
}

}  // namespace millrace::test
