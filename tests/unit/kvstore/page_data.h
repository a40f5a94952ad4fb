// SPDX-License-Identifier: Apache-2.0
// Bytes, digests and scores computed from request, key and offset, so that any page read back can
// be checked without keeping what was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kvstore/kv_store.h"

namespace millrace::kvstore {

inline KvGeometry small_geometry() {
  // first_kv_head is not 0, so that code that confuses the model's heads with the rank's is
  // noticed.
  return {.num_layers = 5,
          .num_kv_heads = 2,
          .first_kv_head = 4,
          .head_dim = 8,
          .dtype = DType::kBFloat16,
          .page_tokens = 64};
}

// The host budget of a store with these slots, including the records of all pages.
inline int64_t host_bytes_for(int64_t device_slots, int64_t host_slots, int64_t disk_slots,
                              const KvGeometry& geometry) {
  return host_slots * geometry.page_bytes() +
         (device_slots + host_slots + disk_slots) * geometry.record_bytes();
}

// splitmix64: every input bit affects every output bit.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline uint64_t page_seed(const std::string& request_id, const PageKey& key) {
  uint64_t seed =
      std::accumulate(request_id.begin(), request_id.end(), uint64_t{1},
                      [](uint64_t h, char c) { return mix(h + static_cast<uint8_t>(c)); });
  for (const int64_t part : {int64_t{key.layer}, int64_t{key.kv_head}, key.page}) {
    seed = mix(seed + static_cast<uint64_t>(part));
  }
  return seed;
}

inline std::vector<std::byte> page_bytes_of(const std::string& request_id, const PageKey& key,
                                            const KvGeometry& geometry) {
  std::vector<std::byte> bytes(static_cast<size_t>(geometry.page_bytes()));
  const uint64_t seed = page_seed(request_id, key);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(mix(seed + i / 8) >> (i % 8 * 8));
  }
  return bytes;
}

// [3, head_dim]: min, max, radius.
inline std::vector<float> digest_of(const std::string& request_id, const PageKey& key,
                                    const KvGeometry& geometry) {
  std::vector<float> digest(3 * static_cast<size_t>(geometry.head_dim));
  const uint64_t seed = page_seed(request_id, key);
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<float>(mix(seed ^ i) % 1000) / 8;
  }
  return digest;
}

inline PageDigest as_page_digest(const std::vector<float>& digest) {
  const std::span all(digest);
  const size_t head_dim = digest.size() / 3;
  return {.min = all.first(head_dim),
          .max = all.subspan(head_dim, head_dim),
          .radius = all.last(head_dim)};
}

inline std::vector<int64_t> iota_pages(int64_t num_pages) {
  std::vector<int64_t> pages(static_cast<size_t>(num_pages));
  std::iota(pages.begin(), pages.end(), int64_t{0});
  return pages;
}

inline Result<void> write_generated_page(KvStore& store, const std::string& request_id,
                                         const PageKey& key, const KvGeometry& geometry) {
  const auto bytes = page_bytes_of(request_id, key, geometry);
  const auto digest = digest_of(request_id, key, geometry);
  return store.write_page(request_id, key, bytes, as_page_digest(digest));
}

// Writes several pages of one layer and kv head in one call.
inline Result<void> write_generated_pages(KvStore& store, const std::string& request_id,
                                          const PageKey& first, int64_t num_pages,
                                          const KvGeometry& geometry) {
  std::vector<std::byte> bytes;
  std::vector<float> min, max, radius;
  for (PageKey key = first; key.page < first.page + num_pages; ++key.page) {
    const auto page = page_bytes_of(request_id, key, geometry);
    bytes.insert(bytes.end(), page.begin(), page.end());
    const auto digest = digest_of(request_id, key, geometry);
    const auto parts = as_page_digest(digest);
    min.insert(min.end(), parts.min.begin(), parts.min.end());
    max.insert(max.end(), parts.max.begin(), parts.max.end());
    radius.insert(radius.end(), parts.radius.begin(), parts.radius.end());
  }
  return store.write_pages(request_id, first.layer, first.kv_head,
                           consecutive_pages(first.page, num_pages), bytes,
                           {.min = min, .max = max, .radius = radius});
}

// Writes every page of the request, layer by layer.
inline Result<void> write_all_pages(KvStore& store, const std::string& request_id,
                                    std::span<const int64_t> pages, const KvGeometry& geometry) {
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
      for (const int64_t page : pages) {
        MR_RETURN_IF_ERROR(write_generated_page(
            store, request_id,
            {.layer = layer, .kv_head = geometry.first_kv_head + head, .page = page}, geometry));
      }
    }
  }
  return {};
}

inline bool holds_generated_data(const PinnedPage& page, const std::string& request_id,
                                 const PageKey& key, const KvGeometry& geometry) {
  const auto bytes = page_bytes_of(request_id, key, geometry);
  const auto digest = digest_of(request_id, key, geometry);
  return std::equal(bytes.begin(), bytes.end(), page.bytes.begin(), page.bytes.end()) &&
         std::equal(digest.begin(), digest.end(), page.digest.begin(), page.digest.end());
}

}  // namespace millrace::kvstore
