// What rank 0's heartbeats and registrations say: written by the engine's thread as things happen,
// read by the control connection's.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "protocol/control_messages.pb.h"

namespace millrace::worker {

// Thread-safe.
class ControlBoard {
 public:
  // `clock`: by which leases end; outlives the board.
  explicit ControlBoard(const Clock& clock = Clock::steady()) : clock_(clock) {}

  void post(std::vector<protocol::Metric> metrics, int64_t free_prompt_tokens);
  // But for its sequence number.
  protocol::Heartbeat heartbeat() const;

  // Leases, as a coordinator that was started anew has to learn them. `done` is what ended the
  // request; its lease counts from now.
  void hold(const protocol::PrefillDone& done);
  // Both do nothing without such a lease.
  void renew(const std::string& request_id, const std::string& lease_id, Duration lease);
  void end(const std::string& request_id, const std::string& lease_id);
  // Those that have not ended.
  std::vector<protocol::LeaseHeld> held();

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
};

}  // namespace millrace::worker
