// SPDX-License-Identifier: Apache-2.0
// How much was read from a tier or file, and how long it took.
#pragma once

#include <cstdint>

namespace millrace::kvstore {

struct ReadTotals {
  int64_t bytes = 0;
  double seconds = 0;
};

}  // namespace millrace::kvstore
