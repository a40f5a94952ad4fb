// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/frame.h"

namespace millrace::tokenizer {

namespace {

void put(int64_t value, char* bytes) {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
}

int64_t get(const char* bytes) {
  int64_t value = 0;
  for (int i = 0; i < 4; ++i) value |= int64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

}  // namespace

std::array<char, kFrameLengthsBytes> encode_lengths(const FrameLengths& lengths) {
  std::array<char, kFrameLengthsBytes> bytes{};
  put(lengths.header, bytes.data());
  put(lengths.body, bytes.data() + 4);
  return bytes;
}

Result<FrameLengths> decode_lengths(const std::array<char, kFrameLengthsBytes>& bytes) {
  const FrameLengths lengths{.header = get(bytes.data()), .body = get(bytes.data() + 4)};
  if (lengths.header > kMaxFrameHeaderBytes || lengths.body > kMaxFrameBodyBytes) {
    return error(Errc::kCorrupt, "a frame of {} and {} bytes, limits {} and {}", lengths.header,
                 lengths.body, kMaxFrameHeaderBytes, kMaxFrameBodyBytes);
  }
  return lengths;
}

}  // namespace millrace::tokenizer
