// SPDX-License-Identifier: Apache-2.0
#include "common/system/cpu.h"

#include <gtest/gtest.h>

#include "tests/support/vector_state.h"

namespace millrace {
namespace {

TEST(VectorRegisters, UpperHalvesAreEmptyAfterwards) {
  empty_upper_halves();
  if (!test::upper_halves_in_use().has_value()) GTEST_SKIP() << "this processor does not say";
  EXPECT_FALSE(*test::upper_halves_in_use());
#ifdef __x86_64__
  asm volatile("vpcmpeqb %%xmm0, %%xmm0, %%xmm0\n\tvinsertf128 $1, %%xmm0, %%ymm0, %%ymm0" ::
                   : "xmm0");
#endif
  EXPECT_TRUE(*test::upper_halves_in_use());
  empty_upper_halves();
  EXPECT_FALSE(*test::upper_halves_in_use());
}

}  // namespace
}  // namespace millrace
