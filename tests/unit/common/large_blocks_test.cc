// SPDX-License-Identifier: Apache-2.0
// Freed memory goes back to the system, whatever was freed before.
#include "common/system/large_blocks.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstddef>
#include <memory>

namespace millrace {
namespace {

TEST(LargeBlocks, AreMappedAlsoAfterALargerOneWasFreed) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "another malloc";
#else
  map_large_blocks();
  { const auto larger = std::make_unique<std::byte[]>(8 * kLargeBlockBytes); }
  const size_t mapped = mallinfo2().hblks;
  const auto block = std::make_unique<std::byte[]>(kLargeBlockBytes);
  EXPECT_EQ(mallinfo2().hblks, mapped + 1);
#endif
}

}  // namespace
}  // namespace millrace
