// What a group is told at its start, the same on all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/clock.h"

namespace millrace::worker {

struct GroupOptions {
  std::string epoch;  // the group's id
  std::string head_plan = "auto";
  double min_recall = 0;  // of requests that name none
  // New tokens, at most, of a prompt that runs between two layers of another; 0: one prompt after the
  // other.
  int64_t max_preempting_tokens = 0;
  // Where rank 0 notes which prefixes are kept for the next start, where the store keeps any; empty: nowhere.
  std::string ledger_path;
  // And which pages events have told of; empty: nowhere, on all ranks.
  std::string journal_path;
  Duration layer_timeout = std::chrono::minutes(5);
  Duration drain_timeout = std::chrono::seconds(30);
  // Then, for what is to be kept of cached prefixes and is not yet.
  Duration keep_timeout = std::chrono::seconds(10);
  Duration max_lease = std::chrono::hours(1);
  Duration default_lease = std::chrono::seconds(30);
};

// The lease that a request of `lease_ms` gets; 0: it names none.
Duration granted_lease(const GroupOptions& options, uint64_t lease_ms);

}  // namespace millrace::worker
