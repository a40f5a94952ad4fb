// SPDX-License-Identifier: Apache-2.0
// What a tokenizer process and its owner exchange: a JSON header and a body of bytes, each with its
// length in front. Pure.
//   uint32 header bytes, uint32 body bytes (little-endian), header, body
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/result.h"

namespace millrace::tokenizer {

struct Frame {
  std::string header;
  std::string body;
};

inline constexpr size_t kFrameLengthsBytes = 8;
// For a reply: a line of JSON, and the ids of the longest text, at most one a byte.
inline constexpr int64_t kMaxFrameHeaderBytes = 1 << 20;
inline constexpr int64_t kMaxFrameBodyBytes = 256 << 20;

struct FrameLengths {
  int64_t header = 0;
  int64_t body = 0;
};

std::array<char, kFrameLengthsBytes> encode_lengths(const FrameLengths& lengths);
// kCorrupt where a length is over its limit.
Result<FrameLengths> decode_lengths(const std::array<char, kFrameLengthsBytes>& bytes);

}  // namespace millrace::tokenizer
