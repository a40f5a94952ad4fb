// How much was read from somewhere, and the time it took.
#pragma once

#include <cstdint>

namespace millrace::kvstore {

struct ReadTotals {
  int64_t bytes = 0;
  double seconds = 0;
};

}  // namespace millrace::kvstore
