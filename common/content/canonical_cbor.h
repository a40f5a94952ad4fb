// SPDX-License-Identifier: Apache-2.0
// Writes CBOR (RFC 8949) in its deterministic form (section 4.2.1): definite lengths, and every
// length and number in its shortest form. Equal values have equal encodings, so these can be
// hashed. Only what keys of pages need: no maps, floats or tags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace millrace {

class CanonicalCbor {
 public:
  void add(int64_t number);
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);  // UTF-8, which is not checked
  void add_null();
  // The next `num_items` values are its items.
  void begin_array(size_t num_items);

  std::span<const std::byte> bytes() const { return bytes_; }
  // Begins anew, in the same memory.
  void clear() { bytes_.clear(); }

 private:
  void head(uint8_t major_type, uint64_t argument);

  std::vector<std::byte> bytes_;
};

}  // namespace millrace
