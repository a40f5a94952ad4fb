// SPDX-License-Identifier: Apache-2.0
#include "worker/events/msgpack_writer.h"

#include <bit>

#include "common/check.h"

namespace millrace::worker {

void MsgpackWriter::add(uint64_t number) {
  if (number < 0x80) return put(number, 1);
  if (number <= 0xff) return put(0xcc00 | number, 2);
  if (number <= 0xffff) return put(uint64_t{0xcd} << 16 | number, 3);
  const int num_bytes = number <= 0xffffffff ? 4 : 8;
  put(num_bytes == 4 ? 0xce : 0xcf, 1);
  put(number, num_bytes);
}

void MsgpackWriter::add(double number) {
  put(0xcb, 1);
  put(std::bit_cast<uint64_t>(number), 8);
}

void MsgpackWriter::add(std::string_view text) {
  if (text.size() >= 32 && text.size() <= 0xff) {
    put(0xd900 | text.size(), 2);
  } else {
    head(text.size(), 0xa0, 32, 0xda);
  }
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  bytes_.insert(bytes_.end(), first, first + text.size());
}

void MsgpackWriter::add_null() {
  put(0xc0, 1);
}

void MsgpackWriter::begin_array(size_t num_items) {
  head(num_items, 0x90, 16, 0xdc);
}

void MsgpackWriter::begin_map(size_t num_items) {
  head(num_items, 0x80, 16, 0xde);
}

// The type byte for 32-bit lengths follows the one for 16-bit lengths.
void MsgpackWriter::head(size_t length, uint8_t fix, size_t fix_limit, uint8_t long16) {
  MR_CHECK(length <= 0xffffffff, "MessagePack has lengths of 32 bits");
  if (length < fix_limit) return put(fix | length, 1);
  const int num_bytes = length <= 0xffff ? 2 : 4;
  put(num_bytes == 2 ? long16 : long16 + 1u, 1);
  put(length, num_bytes);
}

void MsgpackWriter::put(uint64_t value, int num_bytes) {
  for (int i = num_bytes - 1; i >= 0; --i) {
    bytes_.push_back(static_cast<std::byte>(value >> 8 * i));
  }
}

}  // namespace millrace::worker
