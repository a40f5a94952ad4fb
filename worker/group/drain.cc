// SPDX-License-Identifier: Apache-2.0
#include "worker/group/drain.h"

#include "common/log.h"

namespace millrace::worker {

void Drain::announce() {
  if (announced_) return;
  announced_ = true;
  reporter_.draining();
  log::info("draining: {} leases", board_.lease_counts().active);
}

bool Drain::done() {
  const TimePoint now = clock_.now();
  if (!deadline_) deadline_ = now + options_.drain_timeout;
  return board_.lease_counts().active == 0 || now >= *deadline_;
}

}  // namespace millrace::worker
