// SPDX-License-Identifier: Apache-2.0
#include "common/content/canonical_cbor.h"

#include <array>

namespace millrace {

namespace {

enum MajorType : uint8_t { kUnsigned = 0, kNegative = 1, kBytes = 2, kText = 3, kArray = 4 };
constexpr std::byte kNull{0xf6};

}  // namespace

void CanonicalCbor::head(uint8_t major_type, uint64_t argument) {
  const auto first = static_cast<uint8_t>(major_type << 5);
  if (argument < 24) {
    bytes_.push_back(static_cast<std::byte>(first | argument));
    return;
  }
  int num_bytes = 1;  // 1, 2, 4 or 8
  uint8_t length = 24;
  while (num_bytes < 8 && argument >> (8 * num_bytes) != 0) {
    num_bytes *= 2;
    ++length;
  }
  std::array<std::byte, 9> head = {static_cast<std::byte>(first | length)};
  for (int i = 0; i < num_bytes; ++i) {
    head[static_cast<size_t>(num_bytes - i)] = static_cast<std::byte>(argument >> (8 * i));
  }
  bytes_.insert(bytes_.end(), head.begin(), head.begin() + 1 + num_bytes);
}

void CanonicalCbor::add(int64_t number) {
  if (number >= 0) return head(kUnsigned, static_cast<uint64_t>(number));
  head(kNegative, static_cast<uint64_t>(-(number + 1)));
}

void CanonicalCbor::add(std::span<const std::byte> bytes) {
  head(kBytes, bytes.size());
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void CanonicalCbor::add(std::string_view text) {
  head(kText, text.size());
  const auto bytes = std::as_bytes(std::span(text));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void CanonicalCbor::add_null() {
  bytes_.push_back(kNull);
}

void CanonicalCbor::begin_array(size_t num_items) {
  head(kArray, num_items);
}

}  // namespace millrace
