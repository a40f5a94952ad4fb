// SPDX-License-Identifier: Apache-2.0
// What rank 0's heartbeats and registrations say. The engine's thread writes it as things happen;
// the control connection's thread reads it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/clock.h"
#include "protocol/control_messages.pb.h"

namespace millrace::worker {

// Leases on finished caches.
struct LeaseCounts {
  int64_t active = 0;
  int64_t expired = 0;  // so far, ended without a release
};

// Thread-safe.
class ControlBoard {
 public:
  // `clock` decides when leases end, and outlives the board.
  explicit ControlBoard(const Clock& clock = Clock::steady()) : clock_(clock) {}

  void post(std::vector<protocol::Metric> metrics, int64_t free_prompt_tokens);
  // Complete except for its sequence number.
  protocol::Heartbeat heartbeat() const;

  // Leases are kept for a coordinator that is started anew and has to learn them. `done` is the
  // message that ended the request; its lease counts from now.
  void hold(const protocol::PrefillDone& done);
  // renew() and end() do nothing if there is no such lease.
  void renew(const std::string& request_id, const std::string& lease_id, Duration lease);
  void end(const std::string& request_id, const std::string& lease_id);
  // The coordinator's limit too (coordinator/groups/known_prefixes.h): further prefixes are not
  // told.
  static constexpr size_t kMaxPrefixKeys = 65'536;
  // Prefixes that the group has cached (protocol::CachedPrefixes), and those that are gone. Leaves
  // in `change` what is new, under its sequence number. False, and no number, if nothing is.
  bool cache_changed(protocol::CachedPrefixes& change);
  // All cached prefixes.
  protocol::CachedPrefixes cached_prefixes() const;

  // The leases that have not ended.
  std::vector<protocol::LeaseHeld> held();
  LeaseCounts lease_counts();

 private:
  struct Lease {
    std::string id;
    std::string done;  // PrefillDone, serialised: there may be thousands
    TimePoint ends;
  };

  Lease* find(const std::string& request_id, const std::string& lease_id);
  void forget_ended();

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::vector<protocol::Metric> metrics_;
  std::optional<int64_t> free_prompt_tokens_;
  std::map<std::string, Lease> leases_;  // by request
  int64_t num_expired_ = 0;
  uint64_t cache_sequence_ = 0;
  std::unordered_set<uint64_t> prefix_keys_;
  std::vector<protocol::PlanOrigin> plan_origins_;  // the latest last
};

}  // namespace millrace::worker
