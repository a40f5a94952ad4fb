// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/runtime/simd_level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "kernels/cpu/runtime/bfloat16_dots.h"

namespace millrace::kernels::cpu {
namespace {

// Restores the variable, so that it still applies to the rest of a run of all tests under
// MILLRACE_SIMD.
class SimdLevelTest : public testing::Test {
 protected:
  SimdLevelTest() {
    if (const char* value = std::getenv("MILLRACE_SIMD")) before_ = value;
    unsetenv("MILLRACE_SIMD");
  }
  ~SimdLevelTest() override {
    if (before_.empty()) {
      unsetenv("MILLRACE_SIMD");
    } else {
      setenv("MILLRACE_SIMD", before_.c_str(), 1);
    }
  }

 private:
  std::string before_;
};

TEST_F(SimdLevelTest, VariableLowersButNeverRaises) {
  const SimdLevel machine = detect_simd();
  for (SimdLevel level :
       {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512, SimdLevel::kAvx512Bf16}) {
    setenv("MILLRACE_SIMD", std::string(simd_level_name(level)).c_str(), 1);
    EXPECT_EQ(detect_simd(), std::min(level, machine));
  }
}

TEST_F(SimdLevelTest, FastestIsWhatTheVariableAsksFor) {
  for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx512, SimdLevel::kAvx512Bf16}) {
    setenv("MILLRACE_SIMD", std::string(simd_level_name(level)).c_str(), 1);
    EXPECT_EQ(fastest_simd(), std::min(level, machine_simd()));
  }
}

TEST_F(SimdLevelTest, FastestMultipliesBFloat16OnlyWhereThatGains) {
  const double gain = bfloat16_dot_gain();
  EXPECT_EQ(gain > 0, machine_simd() == SimdLevel::kAvx512Bf16);
  if (gain < 1) {
    EXPECT_EQ(fastest_simd(), std::min(machine_simd(), SimdLevel::kAvx512));
  } else if (gain > 1.5) {
    EXPECT_EQ(fastest_simd(), SimdLevel::kAvx512Bf16);
  }
}

TEST_F(SimdLevelTest, UnknownNameIsIgnored) {
  const SimdLevel machine = detect_simd();
  setenv("MILLRACE_SIMD", "sse9", 1);
  EXPECT_EQ(detect_simd(), machine);
}

}  // namespace
}  // namespace millrace::kernels::cpu
