// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/runtime/simd_level.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "common/log.h"
#include "kernels/cpu/runtime/bfloat16_dots.h"

namespace millrace::kernels::cpu {
namespace {

constexpr std::array kLevels = {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512,
                                SimdLevel::kAvx512Bf16};

std::optional<SimdLevel> level_of_name(std::string_view name) {
  for (SimdLevel level : kLevels) {
    if (simd_level_name(level) == name) return level;
  }
  return std::nullopt;
}

// The level that MILLRACE_SIMD names, if it names one.
std::optional<SimdLevel> wanted_level() {
  const char* name = std::getenv("MILLRACE_SIMD");
  if (name == nullptr || *name == '\0') return std::nullopt;
  const auto wanted = level_of_name(name);
  if (!wanted) {
    log::warn("MILLRACE_SIMD={} is not one of baseline, avx2, avx512, avx512_bf16; ignored", name);
  }
  return wanted;
}

// Attention is more than its products, whose gain must pay for rounding and interleaving.
constexpr double kMinDotGain = 1.2;

}  // namespace

std::string_view simd_level_name(SimdLevel level) {
  switch (level) {
    case SimdLevel::kBaseline:
      return "baseline";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kAvx512:
      return "avx512";
    case SimdLevel::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "?";
}

SimdLevel machine_simd() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return SimdLevel::kBaseline;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return SimdLevel::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? SimdLevel::kAvx512Bf16 : SimdLevel::kAvx512;
#else
  return SimdLevel::kBaseline;
#endif
}

SimdLevel detect_simd() {
  return std::min(machine_simd(), wanted_level().value_or(SimdLevel::kAvx512Bf16));
}

SimdLevel fastest_simd() {
  const auto wanted = wanted_level();
  const SimdLevel level = std::min(machine_simd(), wanted.value_or(SimdLevel::kAvx512Bf16));
  if (level < SimdLevel::kAvx512Bf16 || wanted || bfloat16_dot_gain() >= kMinDotGain) {
    return level;
  }
  return SimdLevel::kAvx512;
}

}  // namespace millrace::kernels::cpu
