// A worker group that takes its time from a table and computes nothing. One thread.
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
  int64_t pool_tokens = 4 << 20;      // its KV pools
  int64_t max_preempting_tokens = 0;  // between two of its layers
  int64_t side_by_side_tokens = 0;    // at once, where times of a lane are known
  bool caches = false;                // what prompts begin with; the pools hold the latest
  // At which cached pages come to where they are used. From the host's memory over PCIe 5.0, 50 GB/s,
  // for an 8B model's 131 KB a token: assumed, not measured.
  double load_tokens_per_s = 380'000;
};

class SimulatedGroup final : public coordinator::GroupLink {
 public:
  using Answer = std::function<void(const std::string& group, protocol::Envelope)>;
  // Of a request, as its Arrival has them.
  using PrefixKeys = std::function<std::span<const uint64_t>(const std::string& request_id)>;

  // `answer` is called by events, never from within send().
  SimulatedGroup(SimulatedGroupOptions options, const GroupTimes& times, EventQueue& events,
                 Answer answer, PrefixKeys prefix_keys);

  protocol::Register description() const;
  const SimulatedGroupOptions& options() const { return options_; }
  // Until now.
  double busy_s() const;

  void send(const protocol::Envelope& envelope) override;
  void close(const std::string& why) override;
  bool host_answers() const override { return true; }

 private:
  struct Run {
    protocol::Envelope done;
    std::vector<uint64_t> keys;  // of its beginnings, as they are cached
    double cost = 1;             // of each of them
    double began_s = 0;
    double ends_s = 0;
    double set_aside_s = 0;
  };

  void prefill(const protocol::PrefillRequest& request);
  void prefill_side_by_side(const protocol::PrefillsSideBySide& message);
  // None where the pools are full, which is answered.
  std::optional<Run> begin(const protocol::PrefillRequest& request, bool in_lane);
  double seconds_of(int64_t num_tokens, int64_t cached_tokens, bool in_lane) const;
  // What the prompt that begins now takes besides, as another has just ended.
  double between_s() const;
  std::vector<uint64_t> stored_keys(const protocol::PrefillRequest& request) const;
  void finish(const Run& run);
  void run(Run run);
  // Between two layers of what runs.
  void preempt(Run run);
  // What runs is set aside for so long; seconds until then.
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
