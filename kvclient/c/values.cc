// SPDX-License-Identifier: Apache-2.0
#include "kvclient/c/values.h"

#include <chrono>
#include <cmath>

namespace millrace::kvclient::c {

Duration duration_of(double seconds) {
  const double bounded = std::isnan(seconds) ? 0.0 : std::clamp(seconds, 0.0, 1e8);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(bounded));
}

}  // namespace millrace::kvclient::c
