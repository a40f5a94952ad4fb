// SPDX-License-Identifier: Apache-2.0
#include "common/system/vector_registers.h"

namespace millrace {

void empty_upper_halves() {
#ifdef __x86_64__
  static const bool has_them = __builtin_cpu_supports("avx") != 0;
  if (has_them) asm volatile("vzeroupper");  // nothing here is compiled to use them
#endif
}

}  // namespace millrace
