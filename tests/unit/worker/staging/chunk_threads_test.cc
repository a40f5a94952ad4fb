// SPDX-License-Identifier: Apache-2.0
// Each chunk is done once, on all threads, whatever happened to earlier work.
#include "worker/staging/chunk_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace millrace::worker {
namespace {

using ::testing::Each;

const Deadline kLong = Deadline::after(std::chrono::seconds(60));

class ChunkThreadsTest : public testing::TestWithParam<int> {
 protected:
  void do_all(int64_t num_chunks) {
    std::vector<std::atomic<int>> times(static_cast<size_t>(num_chunks));
    threads_.begin(num_chunks, [&](int thread, int64_t chunk) -> Result<void> {
      MR_CHECK(thread >= 0 && thread < std::max(GetParam(), 1), "thread {}", thread);
      ++times[static_cast<size_t>(chunk)];
      return {};
    });
    ASSERT_TRUE(threads_.wait(kLong).ok());
    for (const auto& n : times) EXPECT_EQ(n, 1);
  }

  ChunkThreads threads_{GetParam()};
};

TEST_P(ChunkThreadsTest, DoesEveryChunkOnce) {
  EXPECT_EQ(threads_.any(), GetParam() > 0);
  for (const int64_t num_chunks : {1000, 1, 0, 7}) do_all(num_chunks);
}

TEST_P(ChunkThreadsTest, AFailureEndsTheWorkThatHasIt) {
  std::atomic<int> num_begun = 0;
  threads_.begin(1'000'000, [&](int, int64_t chunk) -> Result<void> {
    ++num_begun;
    if (chunk == 3) return error(Errc::kIo, "chunk {}", chunk);
    return {};
  });
  const auto done = threads_.wait(kLong);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Errc::kIo);
  EXPECT_EQ(done.error().message, "chunk 3");
  EXPECT_LT(num_begun, 1'000'000);
  do_all(5);
}

TEST_P(ChunkThreadsTest, AnExceptionIsAFailure) {
  threads_.begin(4, [](int, int64_t) -> Result<void> { throw std::runtime_error("broken"); });
  const auto done = threads_.wait(kLong);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Errc::kInternal);
  EXPECT_EQ(done.error().message, "broken");
  do_all(5);
}

INSTANTIATE_TEST_SUITE_P(Threads, ChunkThreadsTest, testing::Values(0, 1, 3));

TEST(ChunkThreads, WhatIsGivenUpIsLeftAtTheNextChunk) {
  ChunkThreads threads(1);
  std::promise<void> at_work, go_on;
  int num_done = 0;
  threads.begin(1000, [&](int, int64_t) -> Result<void> {
    at_work.set_value();
    go_on.get_future().wait();
    ++num_done;
    return {};
  });
  at_work.get_future().wait();
  const auto waited = threads.wait(Deadline::after(Duration::zero()));
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, Errc::kDeadlineExceeded);
  EXPECT_EQ(waited.error().message, "1 of 1 threads are still at work");
  std::thread helper([&] {
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    go_on.set_value();
  });
  threads.give_up();
  helper.join();
  EXPECT_EQ(num_done, 1);
}

}  // namespace
}  // namespace millrace::worker
