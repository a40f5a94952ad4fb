// SPDX-License-Identifier: Apache-2.0
// Which pages of a prompt's KV cache exist, by layer and kv head of the model: a cache that was
// made smaller on request lacks some. One bit per page. A value; the caller guards it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/result.h"

namespace millrace {

class KeptPages {
 public:
  // For a cache of which nothing is kept yet.
  KeptPages(int32_t num_layers, int32_t num_kv_heads, int64_t num_pages)
      : num_layers_(num_layers),
        num_kv_heads_(num_kv_heads),
        num_pages_(num_pages),
        bytes_(static_cast<size_t>(num_layers * int64_t{num_kv_heads} * row_bytes()), '\0') {}
  // From bytes(), for a cache of at least one page. kInvalidArgument: too many or too few bytes, or
  // a bit after the last page.
  static Result<KeptPages> from_bytes(int32_t num_layers, int32_t num_kv_heads, int64_t num_pages,
                                      std::string_view bytes) {
    const int64_t row_bytes = (num_pages + 7) / 8;
    if (std::ssize(bytes) / row_bytes != num_layers * int64_t{num_kv_heads} ||
        std::ssize(bytes) % row_bytes != 0) {
      return error(Errc::kInvalidArgument,
                   "kept pages: {} bytes for {} layers, {} kv heads, {} pages", bytes.size(),
                   num_layers, num_kv_heads, num_pages);
    }
    KeptPages kept(num_layers, num_kv_heads, num_pages);
    kept.bytes_ = bytes;
    const int used_bits = static_cast<int>(num_pages - (row_bytes - 1) * 8);
    for (int64_t at = row_bytes - 1; at < std::ssize(bytes); at += row_bytes) {
      if (static_cast<uint8_t>(bytes[static_cast<size_t>(at)]) >> used_bits == 0) continue;
      return error(Errc::kInvalidArgument, "kept pages: a page behind the last of {}", num_pages);
    }
    return kept;
  }

  int32_t num_layers() const { return num_layers_; }
  int32_t num_kv_heads() const { return num_kv_heads_; }
  int64_t num_pages() const { return num_pages_; }  // of the prompt

  void keep(int32_t layer, int32_t kv_head, int64_t page) {
    auto& byte = bytes_[byte_of(layer, kv_head, page)];
    byte = static_cast<char>(static_cast<uint8_t>(byte) | 1u << (page % 8));
  }
  bool has(int32_t layer, int32_t kv_head, int64_t page) const {
    return (static_cast<uint8_t>(bytes_[byte_of(layer, kv_head, page)]) >> (page % 8) & 1u) != 0;
  }
  // Ascending.
  std::vector<int64_t> pages(int32_t layer, int32_t kv_head) const {
    std::vector<int64_t> pages;
    for (int64_t page = 0; page < num_pages_; ++page) {
      if (has(layer, kv_head, page)) pages.push_back(page);
    }
    return pages;
  }
  // Kept pages of all layers and kv heads.
  int64_t count() const {
    int64_t count = 0;
    for (const char byte : bytes_) count += __builtin_popcount(static_cast<uint8_t>(byte));
    return count;
  }
  // Pages of all layers and kv heads that are not kept.
  int64_t count_dropped() const {
    return num_layers_ * int64_t{num_kv_heads_} * num_pages_ - count();
  }
  // [layers, kv heads, pages / 8 rounded up]: page p is bit p % 8 of byte p / 8, the least
  // significant bit first.
  const std::string& bytes() const { return bytes_; }

  bool operator==(const KeptPages&) const = default;

 private:
  int64_t row_bytes() const { return (num_pages_ + 7) / 8; }
  size_t byte_of(int32_t layer, int32_t kv_head, int64_t page) const {
    MR_CHECK(layer >= 0 && layer < num_layers_ && kv_head >= 0 && kv_head < num_kv_heads_ &&
                 page >= 0 && page < num_pages_,
             "layer {}, kv head {}, page {} of {}, {}, {}", layer, kv_head, page, num_layers_,
             num_kv_heads_, num_pages_);
    return static_cast<size_t>((layer * int64_t{num_kv_heads_} + kv_head) * row_bytes() + page / 8);
  }

  int32_t num_layers_;
  int32_t num_kv_heads_;
  int64_t num_pages_;
  std::string bytes_;
};

}  // namespace millrace
