// SPDX-License-Identifier: Apache-2.0
// One prefill request as the coordinator knows it: from admission until its record is forgotten.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "coordinator/requests/on_disconnect.h"
#include "coordinator/requests/refusal.h"
#include "protocol/control_messages.pb.h"

namespace millrace::coordinator {

class RequestTrace;

// kQueued -> kRunning -> kDone, and from either of the first two -> kFailed (Request::failure says
// why; a cancelled request failed with kCancelled).
enum class RequestState { kQueued, kRunning, kDone, kFailed };
std::string_view request_state_name(RequestState state);

// The lease of a request that is done. kLost: the group that held the KV is gone.
enum class LeaseState { kNone, kActive, kReleased, kExpired, kLost };
std::string_view lease_state_name(LeaseState state);

// What a record stands for. Where nothing is shared, one record is both a client's request and the
// prefill that a group computes for it.
enum class RequestRole {
  kWhole,    // both
  kJoined,   // a client's request, answered by the prefill of another record
  kPrefill,  // a prefill: for requests that have joined it, or for one that may yet come
};

struct Request {
  bool ended() const { return state == RequestState::kDone || state == RequestState::kFailed; }
  // Whether its id is taken: it waits, runs, or its cache can still be read.
  bool in_use() const { return !ended() || lease == LeaseState::kActive; }
  Duration deadline_after() const {  // from queued_at
    return std::chrono::milliseconds(static_cast<int64_t>(options.deadline_ms()));
  }
  // When a group has to be done with it. A prefill may outlast the deadline of its client, for the
  // sake of others or because it is to be finished anyway.
  TimePoint must_end_by() const {
    return outlasts_deadline ? TimePoint::max() : queued_at + deadline_after();
  }
  // By which groups know it, and the lease on its cache.
  const std::string& id_at_group() const { return sent_as.empty() ? id : sent_as; }
  int32_t priority() const { return options.priority(); }
  double queue_s(TimePoint now) const { return seconds(started_at.value_or(now) - queued_at); }

  std::string id;
  std::string owner;  // the name of the token that it came with; "" : none was asked for
  std::string model;
  int64_t num_tokens = 0;
  std::string prompt;  // little-endian int32; kept while it may have to go to another group
  std::vector<int32_t> prompt_end;      // its last tokens, to read the first new one after
  protocol::PrefillOptions options;     // deadline and lease are set, from the defaults if need be
  std::vector<uint64_t> prefix_keys;    // common/content/prefix_keys.h; none if it reads no cache
  uint64_t tenant = 0;                  // the same, tenant_key
  std::string trace_id;                 // for the log; "" : it is in nobody's trace
  std::shared_ptr<RequestTrace> trace;  // coordinator/tracing; null: it is not recorded

  // Of requests that share a prefill (schedule/shared_prefills.h).
  RequestRole role = RequestRole::kWhole;
  std::string sent_as;      // to groups, in place of its id; "" : its id
  std::string sharing_key;  // of one key, one prefill answers all; "" : it shares with none
  OnDisconnect on_disconnect = OnDisconnect::kCancel;
  bool may_miss_deadline = false;  // the client will send it again
  bool outlasts_deadline = false;
  std::optional<TimePoint> suspended_at;
  bool was_suspended = false;

  RequestState state = RequestState::kQueued;
  std::string group_id;  // "" until dispatched
  std::string group_name;
  TimePoint queued_at;
  // When it was last given to a group, and how long it was expected to take there.
  TimePoint dispatched_at;
  double expected_s = 0;
  int64_t foreseen_tokens = 0;              // of the prompt, that the group should have cached
  std::optional<TimePoint> cancel_sent_at;  // to that group
  double set_aside_s = 0;                   // on that group, for other requests
  int times_set_aside = 0;                  // on that group, for how many of them
  bool between_layers = false;              // runs between layers of another prompt of the group
  int num_side_by_side = 1;                 // how many run at once there, this one included
  std::optional<TimePoint> started_at;
  std::optional<TimePoint> ended_at;
  TimePoint kept_since;  // the end of the request or of its lease: retention counts from it
  uint32_t num_layers = 0;
  std::vector<double> layer_density;  // of the layers done so far

  // Groups that gave it back: how often each had no room, and which failed by their own fault.
  std::map<std::string, int> refusals;
  std::set<std::string> failed_on;
  std::optional<Error> given_back;         // the reason, the last time
  std::optional<TimePoint> no_room_since;  // when a group first gave it back for lack of room
  int lost_before_start = 0;  // how often its group was lost before it had begun with it
  bool preempts = true;       // until a group had no room for it next to another prompt
  bool runs_in_lanes = true;  // until one rank of a group had no room for it
  // It could have run, but waits for a group that has cached its prefix.
  std::optional<TimePoint> waits_for_prefix_since;

  // Set while a streaming request runs.
  std::shared_ptr<const protocol::Manifest> opened;

  std::optional<Refusal> failure;
  std::shared_ptr<const protocol::PrefillDone> result;
  // HeadRecalls::density of the result, which does not have it: kept for those that ended last.
  std::shared_ptr<const std::vector<float>> head_density;

  LeaseState lease = LeaseState::kNone;
  TimePoint lease_ends;
  bool shares_lease = false;                 // other records have leases on the same cache
  Duration lease_asked{};                    // with the last LeaseRenew
  bool lease_call_open = false;              // a LeaseRenew was sent and not yet answered
  std::optional<Result<void>> lease_answer;  // to the last LeaseRenew
};

// Whether a request that was to run side by side with others did so, on one context-parallel rank.
bool ran_in_lane(const protocol::PrefillDone& done);

}  // namespace millrace::coordinator
