// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/frame.h"

#include <gtest/gtest.h>

namespace millrace::tokenizer {
namespace {

TEST(Frame, LengthsAreLittleEndian) {
  const auto bytes = encode_lengths({.header = 0x0102, .body = 0x0a0b0c});
  EXPECT_EQ(std::string(bytes.data(), bytes.size()), std::string("\2\1\0\0\xc\xb\xa\0", 8));
}

TEST(Frame, LengthsComeBackUpToTheirLimits) {
  const auto read =
      decode_lengths(encode_lengths({.header = kMaxFrameHeaderBytes, .body = kMaxFrameBodyBytes}));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->header, kMaxFrameHeaderBytes);
  EXPECT_EQ(read->body, kMaxFrameBodyBytes);
}

TEST(Frame, ALengthOverItsLimitIsCorruptBeforeMemoryIsTaken) {
  for (const FrameLengths& lengths : {FrameLengths{.header = kMaxFrameHeaderBytes + 1, .body = 0},
                                      FrameLengths{.header = 2, .body = kMaxFrameBodyBytes + 1},
                                      FrameLengths{.header = 0xffffffff, .body = 0xffffffff}}) {
    const auto read = decode_lengths(encode_lengths(lengths));
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, Errc::kCorrupt);
  }
}

}  // namespace
}  // namespace millrace::tokenizer
