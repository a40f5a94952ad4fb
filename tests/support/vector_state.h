// SPDX-License-Identifier: Apache-2.0
// What the processor reports about this thread's vector registers.
#pragma once

#include <cstdint>
#include <optional>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace millrace::test {

// Whether any upper half is in use; none if the processor cannot report it (XGETBV with ECX = 1).
inline std::optional<bool> upper_halves_in_use() {
#ifdef __x86_64__
  constexpr uint32_t kTells = 1 << 2, kUpperHalves = 1 << 2;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__builtin_cpu_supports("avx") == 0) return std::nullopt;
  if (__get_cpuid_count(0xd, 1, &a, &b, &c, &d) == 0 || (a & kTells) == 0) return std::nullopt;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
  return (a & kUpperHalves) != 0;
#else
  return std::nullopt;
#endif
}

}  // namespace millrace::test
