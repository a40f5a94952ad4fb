// Names of the beginnings of prompts, by which a coordinator knows what its groups have cached: coarser
// than the names of pages (page_keys.h), shorter, and to be had without model and plan. They say where
// to send a request and no more: two beginnings that share a name by chance cost time, not a wrong
// answer, so 64 bits do.
//
//   prefix_keys[i]   of the first (i + 1) * 512 tokens: the first 8 bytes of
//                    SHA-256(the one before, whole; 512 tokens as little-endian int32)
//   stored key       of such a beginning whose pages are cached under an origin, for a tenant
//
// 512 tokens are the blocks of Mooncake's traces, and 8 bytes stand for 2 KiB of token ids. SHA-256 of a million tokens takes some 4 ms with the CPU's SHA
// instructions and 15 without.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/content/page_keys.h"

namespace millrace {

inline constexpr int64_t kPrefixKeyTokens = 512;

// Of all full 512 tokens.
std::vector<uint64_t> prefix_keys(std::span<const int32_t> token_ids);

// Who shares pages: PageOrigin::salt. No owner and salt give another's: the owner's length says where
// the salt begins.
std::string tenant_salt(std::string_view owner, std::string_view cache_salt);
uint64_t tenant_key(std::string_view owner, std::string_view cache_salt);

// Of all but the salt.
uint64_t origin_key(const PageOrigin& origin);

// Mixes the three by the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
uint64_t stored_prefix_key(uint64_t prefix_key, uint64_t origin, uint64_t tenant);

}  // namespace millrace
