// Names of pages by what is in them: two pages of 64 tokens have the same key only if they follow
// the same tokens, and their K and V were computed from the same model in the same way for the same
// tenant. A chain, as vLLM's prefix cache has it (vllm/v1/core/kv_cache_utils.py, sha256_cbor):
//
//   key(i) = SHA-256(CBOR([parent, [token, ... 64 of them], extra]))
//   parent   key(i - 1), a byte string; null for page 0
//   extra    of page 0: ["millrace", version, model, dtype, rope, plan, salt]; null for the others,
//            whose parent has it
//     version  an integer, kPageKeyVersion
//     model    the fingerprint of config and weights, 16 hex digits (model/fingerprint.h)
//     dtype    of K and V as they were computed: "float32", "bfloat16", "float16"; with " fp8" where
//              the linear layers computed in 8-bit floats, then with " kv-fp8" where pages are in
//              them, under the scales of the model
//     rope     1 where the model turns K of prompts of this length by a set of frequencies for long
//              ones (LongRoPE), else 0
//     plan     what each head attends to, as text (plan/prefix_pure.h, plan_identity)
//     salt     the tenant's, text
//
// CBOR is the deterministic form of RFC 8949. Keys are of full pages alone: what does not fill a
// page is not cached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/content/sha256.h"

namespace millrace {

using PageContentKey = Sha256;

struct PageContentKeyHash {
  size_t operator()(const PageContentKey& key) const {
    size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof hash);
    return hash;
  }
};

// Changes with what a page's bytes mean.
inline constexpr int64_t kPageKeyVersion = 1;

struct PageOrigin {
  std::string model;
  std::string dtype;
  bool long_rope = false;
  std::string plan;
  std::string salt;
};

// Of the first `num_pages` full pages of the prompt, which must have as many.
std::vector<PageContentKey> page_keys(std::span<const int32_t> token_ids, int64_t num_pages,
                                      const PageOrigin& origin);

}  // namespace millrace
