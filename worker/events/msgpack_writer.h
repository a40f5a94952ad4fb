// SPDX-License-Identifier: Apache-2.0
// Writes MessagePack (github.com/msgpack/msgpack, spec.md) with every length and number in its
// shortest form, as msgspec does. Supports only what KV cache events need: no binary data, no
// negative numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace::worker {

class MsgpackWriter {
 public:
  void add(uint64_t number);
  void add(double number);
  void add(std::string_view text);  // UTF-8, which is not checked
  void add_null();
  // The next `num_items` values are the array's items; a map takes twice as many, keys and values
  // in turn.
  void begin_array(size_t num_items);
  void begin_map(size_t num_items);

  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void put(uint64_t value, int num_bytes);
  void head(size_t length, uint8_t fix, size_t fix_limit, uint8_t long16);

  std::vector<std::byte> bytes_;
};

}  // namespace millrace::worker
