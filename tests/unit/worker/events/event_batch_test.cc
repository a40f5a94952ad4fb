// SPDX-License-Identifier: Apache-2.0
#include "worker/events/event_batch.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <string>
#include <string_view>

#include "tests/unit/worker/events/golden_batches.h"
#include "worker/events/msgpack_writer.h"

namespace millrace::worker {
namespace {

// As golden_batches.py.
constexpr double kTime = 1795479300.25;

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<size_t>(byte >> 4)];
    text += kDigits[std::to_integer<size_t>(byte & std::byte{15})];
  }
  return text;
}

std::string encoded(const std::vector<KvEvent>& events) {
  return hex(encode_event_batch(kTime, events));
}

// 0 1 .. 127 0 1 ..
std::vector<int32_t> tokens(int num_blocks) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 64 * num_blocks; ++i) tokens.push_back(i % 128);
  return tokens;
}

TEST(EventBatch, IsWhatMsgspecWritesOfAClearedCache) {
  EXPECT_EQ(encoded({AllBlocksCleared()}), golden::kCleared);
}

TEST(EventBatch, IsWhatMsgspecWritesOfStoredBlocks) {
  constexpr auto kMax = std::numeric_limits<BlockHash>::max();
  std::vector<int32_t> widths;
  for (int i = 0; i < 8; ++i) {
    for (const int32_t token : {0, 127, 128, 255, 256, 65535, 65536, 2147483647}) {
      widths.push_back(token);
    }
  }
  EXPECT_EQ(encoded({BlocksStored{.hashes = {kMax}, .token_ids = widths}}),
            golden::kStoredFirstBlock);
  EXPECT_EQ(encoded({BlocksStored{
                .hashes = {0xffffffff, 0x100000000}, .parent = 5, .token_ids = tokens(2)}}),
            golden::kStoredBehind);
  std::vector<BlockHash> many;
  for (BlockHash i = 0; i < 17; ++i) many.push_back(i * 0x0123456789abcdef);
  EXPECT_EQ(encoded({BlocksStored{.hashes = many, .parent = 200, .token_ids = tokens(17)}}),
            golden::kStoredMany);
}

TEST(EventBatch, HasTheSaltWithTheFirstBlock) {
  EXPECT_EQ(encoded({BlocksStored{.hashes = {1, 2, 3},
                                  .token_ids = tokens(3),
                                  .cache_salt = "a salt of 37 bytes, the last being \u00e9"}}),
            golden::kStoredWithSalt);
}

TEST(EventBatch, IsWhatMsgspecWritesOfRemovedBlocks) {
  EXPECT_EQ(
      encoded({BlocksRemoved{.hashes = {3, std::numeric_limits<BlockHash>::max() - 1, 70000}}}),
      golden::kRemoved);
  std::vector<BlockHash> sixteen(16);
  std::iota(sixteen.begin(), sixteen.end(), 0);
  EXPECT_EQ(encoded({BlocksRemoved{.hashes = sixteen},
                     BlocksStored{.hashes = {9}, .parent = 8, .token_ids = tokens(1)}}),
            golden::kRemovedThenStored);
}

TEST(MsgpackWriter, HasMsgspecsLengths) {
  std::string arrays, maps, texts;
  for (const size_t length : {0, 15, 16, 65535, 65536}) {
    MsgpackWriter array, map;
    array.begin_array(length);
    map.begin_map(length);
    arrays += hex(array.take());
    maps += hex(map.take());
  }
  for (const size_t length : {0, 31, 32, 255, 256, 65535, 65536}) {
    MsgpackWriter text;
    text.add(std::string(length, 'x'));
    const auto bytes = text.take();
    texts += hex(std::span(bytes).first(bytes.size() - length));
  }
  EXPECT_EQ(arrays, golden::kArrayHeads);
  EXPECT_EQ(maps, golden::kMapHeads);
  EXPECT_EQ(texts, golden::kTextHeads);
}

TEST(BlockHashTest, IsTheLastEightBytesOfTheKey) {
  PageContentKey key{};
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(0xe0 + i);
  EXPECT_EQ(block_hash(key), 0xf8f9fafbfcfdfeffu);
}

}  // namespace
}  // namespace millrace::worker
