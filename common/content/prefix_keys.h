// SPDX-License-Identifier: Apache-2.0
// Names of the beginnings of prompts, by which a coordinator knows what its groups have cached.
// They are coarser and shorter than the names of pages (page_keys.h), and need neither model nor
// plan. They only decide where to send a request: two beginnings that share a name by chance cost
// time but give no wrong answer, so 64 bits are enough.
//
//   prefix_keys[i]   of the first (i + 1) * 512 tokens: the first 8 bytes of
//                    SHA-256(the one before, whole; 512 tokens as little-endian int32)
//   stored key       of such a beginning whose pages are cached under an origin, for a tenant
//
// 512 tokens are the blocks of Mooncake's traces, and 8 bytes stand for 2 KiB of token ids. SHA-256
// of a million tokens takes some 4 ms with the CPU's SHA instructions and 15 ms without.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/content/page_keys.h"

namespace millrace {

inline constexpr int64_t kPrefixKeyTokens = 512;

// Keys of all full blocks of 512 tokens.
std::vector<uint64_t> prefix_keys(std::span<const int32_t> token_ids);

// Names those who share pages: PageOrigin::salt. No owner and salt give the text of another pair,
// because the owner's length says where the salt begins.
std::string tenant_salt(std::string_view owner, std::string_view cache_salt);
uint64_t tenant_key(std::string_view owner, std::string_view cache_salt);

// Covers all of the origin but the salt.
uint64_t origin_key(const PageOrigin& origin);

// Mixes the three with the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
uint64_t stored_prefix_key(uint64_t prefix_key, uint64_t origin, uint64_t tenant);

}  // namespace millrace
