// SPDX-License-Identifier: Apache-2.0
// The options that a group is started with, the same on all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/clock.h"

namespace millrace::worker {

struct GroupOptions {
  std::string epoch;  // the group's id
  std::string head_plan = "auto";
  double min_recall = 0;  // for requests that name none
  // The most new tokens of a prompt that may run between two layers of another; 0: prompts run one
  // after the other.
  int64_t max_preempting_tokens = 0;
  // The file where rank 0 records which pages are cached, for the next start; empty, on all ranks:
  // none.
  std::string journal_path;
  Duration layer_timeout = std::chrono::minutes(5);
  Duration drain_timeout = std::chrono::seconds(30);
  // After the drain, the time to keep cached prefixes that are not yet kept.
  Duration keep_timeout = std::chrono::seconds(10);
  Duration max_lease = std::chrono::hours(1);
  Duration default_lease = std::chrono::seconds(30);
};

// The lease that a request gets if it asks for `lease_ms`; 0: it names none.
Duration granted_lease(const GroupOptions& options, uint64_t lease_ms);

}  // namespace millrace::worker
