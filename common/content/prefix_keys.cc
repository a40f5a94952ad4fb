// SPDX-License-Identifier: Apache-2.0
#include "common/content/prefix_keys.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "common/content/canonical_cbor.h"
#include "common/content/sha256.h"

namespace millrace {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they are");

namespace {

uint64_t first_bytes(const Sha256& hash) {
  uint64_t value = 0;
  std::memcpy(&value, hash.data(), sizeof value);
  return value;
}

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

std::vector<uint64_t> prefix_keys(std::span<const int32_t> token_ids) {
  constexpr size_t kTokenBytes = kPrefixKeyTokens * sizeof(int32_t);
  std::vector<uint64_t> keys;
  keys.reserve(token_ids.size() / kPrefixKeyTokens);
  Sha256 before{};
  std::vector<std::byte> hashed(before.size() + kTokenBytes);
  for (; token_ids.size() >= kPrefixKeyTokens; token_ids = token_ids.subspan(kPrefixKeyTokens)) {
    std::memcpy(hashed.data(), before.data(), before.size());
    std::memcpy(hashed.data() + before.size(), token_ids.data(), kTokenBytes);
    before = sha256(hashed);
    keys.push_back(first_bytes(before));
  }
  return keys;
}

std::string tenant_salt(std::string_view owner, std::string_view cache_salt) {
  return fmt::format("{}:{}{}", owner.size(), owner, cache_salt);
}

uint64_t tenant_key(std::string_view owner, std::string_view cache_salt) {
  const std::string salt = tenant_salt(owner, cache_salt);
  return first_bytes(sha256(std::as_bytes(std::span(salt))));
}

uint64_t origin_key(const PageOrigin& origin) {
  CanonicalCbor cbor;
  cbor.begin_array(5);
  cbor.add(kPageKeyVersion);
  cbor.add(origin.model);
  cbor.add(origin.dtype);
  cbor.add(int64_t{origin.long_rope ? 1 : 0});
  cbor.add(origin.plan);
  return first_bytes(sha256(cbor.bytes()));
}

uint64_t stored_prefix_key(uint64_t prefix_key, uint64_t origin, uint64_t tenant) {
  return mix(mix(mix(prefix_key) + origin) + tenant);
}

}  // namespace millrace
