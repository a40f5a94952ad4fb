// SPDX-License-Identifier: Apache-2.0
#include "comm/net/reader_threads.h"

#include <gtest/gtest.h>

#include <future>
#include <new>

namespace millrace::comm {
namespace {

TEST(ReaderThreads, ATaskThatThrowsDoesNotEndItsThread) {
  ReaderThreads readers(1);
  readers.post([] { throw std::bad_alloc(); });
  std::promise<void> done;
  readers.post([&done] { done.set_value(); });
  done.get_future().wait();
}

}  // namespace
}  // namespace millrace::comm
