// SPDX-License-Identifier: Apache-2.0
// Leases on finished caches, as ControlBoard counts them.
#pragma once

#include <cstdint>

namespace millrace::worker {

struct LeaseCounts {
  int64_t active = 0;
  int64_t expired = 0;  // so far, ended without a release
};

}  // namespace millrace::worker
