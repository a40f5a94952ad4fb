// One worker group that is connected now.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "coordinator/groups/group_health.h"
#include "coordinator/groups/group_link.h"
#include "coordinator/groups/known_prefixes.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

struct Group {
  explicit Group(const GroupHealth::Rests& rests = {}) : health(rests) {}

  bool idle() const {
    return running == nullptr && preempting == nullptr && side_by_side.empty() && !draining;
  }
  // Whether it can ever take a prompt of this model and length.
  bool takes(const std::string& model, int64_t num_tokens) const {
    return description.model().name() == model &&
           num_tokens <= static_cast<int64_t>(description.max_prompt_tokens());
  }
  // Whether between two layers of another prompt, of whose tokens so many are to be computed.
  bool takes_between_layers(int64_t num_tokens, int64_t new_tokens) const {
    const uint64_t most_new = description.max_preempting_tokens();
    const uint64_t most = std::max(most_new, description.max_preempting_prompt_tokens());
    return new_tokens <= static_cast<int64_t>(most_new) && num_tokens <= static_cast<int64_t>(most);
  }
  // Tokens of a prompt that need not be computed in a lane, as all ranks' pages are read there: 0 where a lane knows its own
  // alone.
  int64_t cached_for_lane(const Request& request) const;
  // As far as it has reported.
  bool has_room(int64_t num_tokens) const { return !free_tokens || *free_tokens >= num_tokens; }
  // Adjusts the estimate when a cache comes or goes, until the group's next report. A group that is asked
  // without room that is known of may have more than its last report said: from then on nothing is known.
  void count_room(int64_t num_tokens) {
    if (!free_tokens) return;
    *free_tokens += num_tokens;
    if (*free_tokens < 0) free_tokens.reset();
  }
  // Reports during a prefill are ignored: they are from before it started.
  void report_room(uint64_t free_prompt_tokens);
  // Null if it does not work on it.
  std::shared_ptr<Request> find(const std::string& request_id) const;
  bool works_on(const std::string& request_id) const { return find(request_id) != nullptr; }
  // All that it works on.
  std::vector<std::shared_ptr<Request>> requests() const;
  // The group has answered, or is gone: it works on the request no more. Null if it did not.
  std::shared_ptr<Request> take(const std::string& request_id);
  // Nobody needs that cache any more.
  void send_release(const std::string& request_id, const std::string& lease_id) const;
  // The longest time before it notices that a request was cancelled. What runs side by side is not interrupted.
  Duration longest_step(const Request& request) const;

  protocol::Register description;
  GroupLink* link = nullptr;
  Duration last_heard{};               // in attended time
  std::optional<int64_t> free_tokens;  // the longest prompt its pools have room for
  GroupHealth health;
  KnownPrefixes prefixes;
  int64_t leases_told = 0;  // since it registered
  // Until the group answers, even if they were cancelled. The second runs between two layers of the
  // first.
  std::shared_ptr<Request> running;
  std::shared_ptr<Request> preempting;
  // At once, each on one context-parallel rank: instead of the first, or of the second.
  std::vector<std::shared_ptr<Request>> side_by_side;
  bool draining = false;
  // Has prefilled nothing since it registered: its first prompt may wait for what a process does once, as a host pool that
  // is being page-locked.
  bool cold = false;
};

}  // namespace millrace::coordinator
