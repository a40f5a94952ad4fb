// SPDX-License-Identifier: Apache-2.0
#include "common/clock.h"

namespace millrace {

namespace {
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};
}  // namespace

const Clock& Clock::steady() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace millrace
