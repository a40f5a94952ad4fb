// SPDX-License-Identifier: Apache-2.0
#include "worker/events/batch_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::byte> payload(size_t num_bytes) {
  return std::vector<std::byte>(num_bytes, std::byte{1});
}

std::vector<uint64_t> sequences(const BatchBuffer& buffer, uint64_t since) {
  std::vector<uint64_t> found;
  for (const auto& batch : buffer.since(since)) found.push_back(batch.sequence);
  return found;
}

TEST(BatchBuffer, CountsFromZeroAndGivesAllSinceANumber) {
  BatchBuffer buffer(10, 1000);
  EXPECT_THAT(buffer.since(0), IsEmpty());
  for (size_t size = 1; size <= 3; ++size) {
    const auto batch = buffer.add(payload(size));
    EXPECT_EQ(batch.sequence, size - 1);
    EXPECT_EQ(batch.payload->size(), size);
  }
  EXPECT_THAT(sequences(buffer, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(sequences(buffer, 2), ElementsAre(2));
  EXPECT_EQ(buffer.since(2).front().payload->size(), 3u);
  EXPECT_THAT(buffer.since(3), IsEmpty());
  EXPECT_THAT(buffer.since(~uint64_t{0}), IsEmpty());
}

TEST(BatchBuffer, TheOldestGoWhereThereAreTooMany) {
  BatchBuffer buffer(2, 1000);
  for (int i = 0; i < 5; ++i) buffer.add(payload(1));
  EXPECT_THAT(sequences(buffer, 0), ElementsAre(3, 4));
}

TEST(BatchBuffer, TheOldestGoWhereTheyAreTooLarge) {
  BatchBuffer buffer(100, 10);
  for (const size_t size : {4, 4, 2, 3}) buffer.add(payload(size));
  EXPECT_THAT(sequences(buffer, 0), ElementsAre(1, 2, 3));
  // The space of those that went is free again.
  buffer.add(payload(7));
  EXPECT_THAT(sequences(buffer, 0), ElementsAre(3, 4));
}

TEST(BatchBuffer, ABatchLargerThanTheBufferHasANumberAlone) {
  BatchBuffer buffer(100, 10);
  buffer.add(payload(1));
  buffer.add(payload(11));
  EXPECT_THAT(buffer.since(0), IsEmpty());
  buffer.add(payload(10));
  EXPECT_THAT(sequences(buffer, 0), ElementsAre(2));
}

TEST(BatchBuffer, ABatchThatIsSentOutlivesItsPlaceInTheBuffer) {
  BatchBuffer buffer(1, 1000);
  buffer.add(payload(5));
  const auto sent = buffer.since(0);
  buffer.add(payload(1));
  EXPECT_EQ(*sent.front().payload, payload(5));
}

}  // namespace
}  // namespace millrace::worker
