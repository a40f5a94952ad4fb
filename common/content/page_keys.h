// SPDX-License-Identifier: Apache-2.0
// Names of pages by their content: two pages of 64 tokens have the same key only if they follow the
// same tokens and their K and V were computed from the same model in the same way for the same
// tenant. A chain of hashes, as in vLLM's prefix cache (vllm/v1/core/kv_cache_utils.py,
// sha256_cbor):
//
//   key(i) = SHA-256(CBOR([parent, [token, ... 64 of them], extra]))
//   parent   key(i - 1), a byte string; null for page 0
//   extra    of page 0: ["millrace", version, model, dtype, rope, plan, salt]; null for the others,
//            whose parent covers it
//     version  an integer, kPageKeyVersion
//     model    the fingerprint of config and weights, 16 hex digits (model/fingerprint.h)
//     dtype    of K and V as they were computed: "float32", "bfloat16", "float16"; with " fp8" if
//              the linear layers computed in 8-bit floats, then with " kv-fp8" if pages are stored
//              in 8-bit floats with the scales of the model
//     rope     1 if the model rotates K of prompts of this length by a set of frequencies for long
//              prompts (LongRoPE), else 0
//     plan     what each head attends to, as text (plan/prefix_pure.h, plan_identity)
//     salt     the tenant's, text
//
// CBOR is the deterministic form of RFC 8949. Only full pages have keys: tokens that do not fill a
// page are not cached.
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

// Changes when the meaning of a page's bytes does.
inline constexpr int64_t kPageKeyVersion = 1;

struct PageOrigin {
  std::string model;
  std::string dtype;
  bool long_rope = false;
  std::string plan;
  std::string salt;
};

// Keys of the first `num_pages` full pages of the prompt, which must have that many.
std::vector<PageContentKey> page_keys(std::span<const int32_t> token_ids, int64_t num_pages,
                                      const PageOrigin& origin);

}  // namespace millrace
