#include "kernels/cpu/simd_level.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "common/log.h"

namespace millrace::kernels::cpu {
namespace {

constexpr std::array kLevels = {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512,
                                SimdLevel::kAvx512Bf16};

SimdLevel machine_level() {
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

std::optional<SimdLevel> level_of_name(std::string_view name) {
  for (SimdLevel level : kLevels) {
    if (simd_level_name(level) == name) return level;
  }
  return std::nullopt;
}

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

SimdLevel detect_simd() {
  const SimdLevel machine = machine_level();
  const char* wanted_name = std::getenv("MILLRACE_SIMD");
  if (wanted_name == nullptr || *wanted_name == '\0') return machine;
  const auto wanted = level_of_name(wanted_name);
  if (!wanted) {
    spdlog::warn("MILLRACE_SIMD={} is not one of baseline, avx2, avx512, avx512_bf16; ignored",
                 wanted_name);
    return machine;
  }
  return std::min(machine, *wanted);
}

}  // namespace millrace::kernels::cpu
