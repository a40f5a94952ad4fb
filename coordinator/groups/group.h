// SPDX-License-Identifier: Apache-2.0
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
#include "coordinator/groups/pool_usage.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

struct Group {
  explicit Group(const GroupHealth::Rests& rests = {}) : health(rests) {}

  bool idle() const {
    return running == nullptr && preempting == nullptr && side_by_side.empty() &&
           resuming.empty() && !draining;
  }
  // Whether it can ever take a prompt of this model and length.
  bool takes(const std::string& model, int64_t num_tokens) const {
    return description.model().name() == model &&
           num_tokens <= static_cast<int64_t>(description.max_prompt_tokens());
  }
  // Whether it can take a prompt of this length between two layers of another prompt, if
  // `new_tokens` of it have to be computed.
  bool takes_between_layers(int64_t num_tokens, int64_t new_tokens) const {
    const uint64_t most_new = description.max_preempting_tokens();
    const uint64_t most = std::max(most_new, description.max_preempting_prompt_tokens());
    return new_tokens <= static_cast<int64_t>(most_new) && num_tokens <= static_cast<int64_t>(most);
  }
  // Tokens of a prompt that need not be computed in a lane, where the lane reads the pages of all
  // ranks. 0 where a lane knows only its own rank's pages.
  int64_t cached_for_lane(const Request& request) const;
  // Whether it has room, as far as it has reported.
  bool has_room(int64_t num_tokens) const { return !free_tokens || *free_tokens >= num_tokens; }
  // Adjusts the estimate when a cache comes or goes, until the group's next report. A group that is
  // sent a prompt without known room may have more room than its last report said: from then on
  // nothing is known.
  void count_room(int64_t num_tokens) {
    if (!free_tokens) return;
    *free_tokens += num_tokens;
    if (*free_tokens < 0) free_tokens.reset();
  }
  // Reports during a prefill are ignored, because they date from before it started.
  void report_room(uint64_t free_prompt_tokens);
  // By Request::id_at_group(). Null if the group does not work on the request.
  std::shared_ptr<Request> find(const std::string& request_id) const;
  bool works_on(const std::string& request_id) const { return find(request_id) != nullptr; }
  // All requests that the group works on.
  std::vector<std::shared_ptr<Request>> requests() const;
  // The group has answered or is gone: it no longer works on the request. Null if it did not work
  // on it.
  std::shared_ptr<Request> take(const std::string& request_id);
  // Whether `request`, which runs, can be suspended.
  bool can_suspend(const Request& request) const;
  // The prompt that runs stops, and what runs between its layers goes on.
  void suspend(const std::shared_ptr<Request>& request, TimePoint now);
  // A suspended prompt goes on, once what runs has ended.
  void resume(const std::shared_ptr<Request>& request, TimePoint now);
  // To be called when a prompt has ended: the next that was resumed goes on.
  void go_on(TimePoint now);
  // Those that run one after the other before a further one can start. A null among them is none.
  std::vector<std::shared_ptr<Request>> in_turn() const;
  // From now on the group's work is that of `heir`. False if it does not work on `request`.
  bool replace(const std::shared_ptr<Request>& request, const std::shared_ptr<Request>& heir);
  // Tells the group that nobody needs that cache any more.
  void send_release(const std::string& request_id, const std::string& lease_id) const;
  // The longest time before the group notices that a request was cancelled. Prompts that run side
  // by side are not interrupted.
  Duration longest_step(const Request& request) const;

  protocol::Register description;
  GroupLink* link = nullptr;
  Duration last_message{};             // in attended time
  std::optional<int64_t> free_tokens;  // the longest prompt its pools have room for
  PoolUsage pools;
  GroupHealth health;
  KnownPrefixes prefixes;
  int64_t leases_told = 0;  // since it registered
  // Each is set until the group answers, even if the request was cancelled. `preempting` runs
  // between two layers of `running`.
  std::shared_ptr<Request> running;
  std::shared_ptr<Request> preempting;
  // Have stopped between two of their layers until they are resumed; `running` and the others run
  // meanwhile.
  std::vector<std::shared_ptr<Request>> suspended;
  // Were suspended, and go on one after the other as soon as what runs has ended.
  struct Resuming {
    std::shared_ptr<Request> request;
    TimePoint set_aside_since;
  };
  std::vector<Resuming> resuming;
  // Prompts that run at once, each on one context-parallel rank, instead of `running` or of
  // `preempting`.
  std::vector<std::shared_ptr<Request>> side_by_side;
  bool draining = false;
  // The group has prefilled nothing since it registered. Its first prompt may wait for what a
  // process does only once, such as page-locking a host pool.
  bool cold = false;
};

}  // namespace millrace::coordinator
