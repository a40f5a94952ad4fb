// SPDX-License-Identifier: Apache-2.0
// A worker group that takes its times from a table and computes nothing. One thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/fleet/event_queue.h"
#include "bench/fleet/group_times.h"
#include "bench/fleet/simulated_cache.h"
#include "coordinator/groups/group_link.h"

namespace millrace::bench {

struct SimulatedGroupOptions {
  std::string name;
  std::string kind;
  int64_t pool_tokens = 4 << 20;      // of its KV pools
  int64_t max_preempting_tokens = 0;  // that may run between two of its layers
  int64_t side_by_side_tokens = 0;    // at once; needs known times of a lane
  bool caches = false;                // whether it caches prefixes; the pools hold the latest
  // How fast cached pages are loaded. From host memory over PCIe 5.0 at 50 GB/s, for 131 KB a token
  // of an 8B model: assumed, not measured.
  double load_tokens_per_s = 380'000;
};

class SimulatedGroup final : public coordinator::GroupLink {
 public:
  using Answer = std::function<void(const std::string& group, protocol::Envelope)>;
  // The prefix keys of a request, as its Arrival has them.
  using PrefixKeys = std::function<std::span<const uint64_t>(const std::string& request_id)>;

  // `answer` is called by events, never from within send().
  SimulatedGroup(SimulatedGroupOptions options, const GroupTimes& times, EventQueue& events,
                 Answer answer, PrefixKeys prefix_keys);

  protocol::Register description() const;
  const SimulatedGroupOptions& options() const { return options_; }
  // Up to now.
  double busy_s() const;

  void send(const protocol::Envelope& envelope) override;
  void close(const std::string& why) override;
  bool host_answers() const override { return true; }

 private:
  struct Run {
    protocol::Envelope done;
    std::vector<uint64_t> keys;  // prefix keys of the prompt that are cached
    double cost = 1;             // of each key
    double began_s = 0;
    double ends_s = 0;
    double set_aside_s = 0;
  };

  void prefill(const protocol::PrefillRequest& request);
  void prefill_side_by_side(const protocol::PrefillsSideBySide& message);
  // None if the pools are full; the request is then answered with an error.
  std::optional<Run> begin(const protocol::PrefillRequest& request, bool in_lane);
  double seconds_of(int64_t num_tokens, int64_t cached_tokens, bool in_lane) const;
  // The extra time of a prompt that begins now because another has just ended.
  double between_s() const;
  std::vector<uint64_t> stored_keys(const protocol::PrefillRequest& request) const;
  void finish(const Run& run);
  void run(Run run);
  // Runs it between two layers of the running prompt.
  void preempt(Run run);
  // Sets the running prompt aside for this long. Returns the seconds until then.
  double set_aside(double for_s);
  void end_when_due();
  void release(const std::string& lease_id);
  void answer_after(double delay_s, protocol::Envelope envelope);
  void report_room();

  SimulatedGroupOptions options_;
  const GroupTimes& times_;
  EventQueue& events_;
  Answer answer_;
  PrefixKeys prefix_keys_;
  SimulatedCache cache_;
  uint64_t cache_sequence_ = 0;
  double busy_s_ = 0;
  double last_end_s_ = -1;
  std::optional<Run> running_;
  int64_t free_tokens_;
  std::map<std::string, int64_t> tokens_of_lease_;
};

}  // namespace millrace::bench
