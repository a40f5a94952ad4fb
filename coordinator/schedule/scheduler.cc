#include "coordinator/schedule/scheduler.h"

#include <algorithm>
#include <cstring>

#include "coordinator/schedule/request_log.h"
#include "coordinator/text/request_id.h"

namespace millrace::coordinator {

namespace {

// Twice of what the server lets pass between two.
constexpr std::chrono::milliseconds kLongestTick{100};
// A group that says that it has room and refuses all the same is asked so often.
constexpr int kMaxRefusals = 2;

int64_t to_ms(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

std::string to_bytes(const std::vector<int32_t>& tokens) {
  std::string bytes(tokens.size() * sizeof(int32_t), '\0');
  if (!tokens.empty()) std::memcpy(bytes.data(), tokens.data(), bytes.size());
  return bytes;
}

Duration ms_or(int64_t ms, Duration otherwise) {
  return ms == 0 ? otherwise : Duration(std::chrono::milliseconds(ms));
}

}  // namespace

Scheduler::Scheduler(const SchedulerSettings& settings, const Clock& clock, Probes& probes,
                     OnChange on_change)
    : settings_(settings),
      clock_(clock),
      probes_(probes),
      on_change_(std::move(on_change)),
      queue_(settings.max_queued_requests, settings.max_queued_bytes),
      table_(settings.max_ended_records, settings.keep_ended),
      groups_(settings.rests),
      attended_(clock.now(), kLongestTick),
      last_beat_(clock.now()) {}

bool Scheduler::ready() const {
  const auto offered = offers();
  return !draining_ && std::any_of(offered.begin(), offered.end(),
                                   [](const auto& offer) { return offer.second.num_ready > 0; });
}

// ---- admission ----

std::optional<Refusal> Scheduler::check(const PrefillBody& body) const {
  if (draining_) return Refusal(Error(Errc::kUnavailable, "the coordinator is shutting down"));
  const auto offered = offers();
  const auto found = offered.find(body.model);
  if (found == offered.end()) {
    if (!offered.empty() && !groups_.knows_model(body.model)) {
      return Refusal(
          error(Errc::kNotFound, "no model '{}' here; GET /v1/models lists them", body.model),
          "model");
    }
    return Refusal(
        error(Errc::kUnavailable, "no worker group for model '{}' is connected", body.model));
  }
  const ModelOffer& offer = found->second;
  if (offer.num_ready == 0) {
    return Refusal(error(Errc::kUnavailable, "all {} worker groups of model '{}' are draining",
                         offer.num_groups, body.model));
  }
  const auto num_tokens = static_cast<int64_t>(body.prompt_token_ids.size());
  if (num_tokens > offer.max_prompt_tokens) {
    return Refusal(error(Errc::kTooLarge, "prompt of {} tokens; model '{}' takes at most {} here",
                         num_tokens, body.model, offer.max_prompt_tokens),
                   "prompt_token_ids");
  }
  const auto vocabulary = static_cast<int64_t>(offer.description.vocab_size());
  const auto& tokens = body.prompt_token_ids;
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [&](int32_t token) { return token < 0 || token >= vocabulary; });
  if (bad != tokens.end()) {
    return Refusal(error(Errc::kInvalidArgument,
                         "prompt_token_ids[{}] is {}; model '{}' has a vocabulary of {}",
                         bad - tokens.begin(), *bad, body.model, vocabulary),
                   "prompt_token_ids");
  }
  return std::nullopt;
}

std::optional<Refusal> Scheduler::submit(PrefillBody body) {
  MR_CHECK(check_request_id(body.request_id).ok(), "request id '{}'", body.request_id);
  std::optional<Refusal> refusal = check(body);
  if (!refusal) {
    const auto existing = table_.find(body.request_id);
    if (existing && existing->in_use()) {
      refusal = Refusal(error(Errc::kInvalidArgument, "request id '{}' is in use ({})",
                              existing->id, request_state_name(existing->state)),
                        "request_id");
    }
  }
  if (!refusal) {
    const Result<void> queued = enqueue(std::move(body));
    if (!queued.ok()) {
      refusal = Refusal(queued.error());
      refusal->retry_after_s = retry_after_full_queue_s();
    }
  }
  if (refusal) probes_.refused(refusal->error);
  return refusal;
}

Result<void> Scheduler::enqueue(PrefillBody body) {
  auto request = std::make_shared<Request>();
  request->id = std::move(body.request_id);
  request->model = std::move(body.model);
  request->num_tokens = static_cast<int64_t>(body.prompt_token_ids.size());
  request->prompt = to_bytes(body.prompt_token_ids);
  request->head_plan = std::move(body.head_plan);
  request->min_recall = body.min_recall;
  request->deadline_after = ms_or(body.deadline_ms, settings_.default_deadline);
  request->lease_for = ms_or(body.lease_ms, settings_.default_lease);
  request->handover = body.handover;
  request->queued_at = clock_.now();
  MR_RETURN_IF_ERROR(queue_.push(request));
  const bool inserted = table_.insert(request);
  MR_CHECK(inserted, "request id {} in use", request->id);
  probes_.admitted(*request);
  dispatch();
  return {};
}

// ---- running ----

void Scheduler::dispatch() {
  const auto any_idle = [this] {
    const auto all = groups_.all();
    return std::any_of(all.begin(), all.end(), [](const Group* group) { return group->idle(); });
  };
  // Those that were given back stand in front. The others wait as long as no group is idle.
  std::vector<std::shared_ptr<Request>> looked_at;
  bool idle = any_idle();
  for (const auto& request : queue_.waiting()) {
    if (!idle && !request->given_back) break;
    looked_at.push_back(request);
  }
  for (const auto& request : looked_at) {
    if (!idle && !request->given_back) break;
    if (Group* group = choose(*request)) {
      queue_.remove(*request);
      start(*group, request);
      idle = any_idle();
    } else if (hopeless(*request)) {
      end_hopeless(request);
    }
  }
  count_waiting();
}

// How often `group` had no room for the request; none if it is not to be asked again.
std::optional<int> Scheduler::refusals(const Group& group, const Request& request) {
  const std::string& id = group.description.group_id();
  if (!group.takes(request.model, request.num_tokens) || group.draining) return std::nullopt;
  if (request.failed_on.count(id) != 0) return std::nullopt;
  const auto refused = request.refusals.find(id);
  if (refused == request.refusals.end()) return 0;
  return refused->second < kMaxRefusals ? std::optional<int>(refused->second) : std::nullopt;
}

// The idle group that is to have the request: one that says that it has room, or one that it is
// worth asking where no other may still take it.
Group* Scheduler::choose(const Request& request) {
  const TimePoint now = clock_.now();
  Group* best = nullptr;
  Group* last_resort = nullptr;
  bool another_will_do = false;  // once it is idle
  for (Group* group : groups_.all()) {
    const auto refused = refusals(*group, request);
    if (!refused) continue;
    const bool rests = group->health.rests(now);
    const bool willing = group->has_room(request.num_tokens) && !rests;
    if (!group->idle()) {
      another_will_do = another_will_do || willing;
    } else if (willing) {
      if (best == nullptr || group->free_tokens > best->free_tokens) best = group;
    } else if (*refused == 0) {
      // One that rests is asked after one without room.
      const auto rank = [now](const Group& asked) {
        return std::pair(!asked.health.rests(now), asked.free_tokens);
      };
      if (last_resort == nullptr || rank(*group) > rank(*last_resort)) last_resort = group;
    }
  }
  if (best != nullptr) return best;
  return another_will_do ? nullptr : last_resort;
}

// It was given back, and no group would take it that has not been asked.
bool Scheduler::hopeless(const Request& request) {
  if (!request.given_back) return false;
  const auto all = groups_.all();
  return std::none_of(all.begin(), all.end(), [&](const Group* group) {
    const auto refused = refusals(*group, request);
    return refused && (group->has_room(request.num_tokens) || (*refused == 0 && group->idle()));
  });
}

void Scheduler::start(Group& group, std::shared_ptr<Request> request) {
  const Duration left = request->queued_at + request->deadline_after - clock_.now();
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_prefill_request();
  message.set_request_id(request->id);
  message.set_prompt_token_ids(request->prompt);
  message.set_head_plan(request->head_plan);
  message.set_min_recall(request->min_recall);
  message.set_deadline_ms(static_cast<uint64_t>(std::max<int64_t>(1, to_ms(left))));
  message.set_lease_ms(static_cast<uint64_t>(to_ms(request->lease_for)));
  message.set_handover(request->handover);
  group.count_room(-request->num_tokens);
  request->group_id = group.description.group_id();
  request->group_name = group.description.group_name();
  request->num_layers = group.description.model().num_layers();
  ++running_;
  group.cancelled_at.reset();
  group.running = std::move(request);
  group.link->send(envelope);
}

void Scheduler::fail(const std::shared_ptr<Request>& request, Error why) {
  if (request->ended()) return;
  if (!queue_.remove(*request)) --running_;
  request->prompt.clear();
  request->state = RequestState::kFailed;
  request->failure = std::move(why);
  request->ended_at = request->kept_since = clock_.now();
  ended(*request);
  count_waiting();
}

void Scheduler::cancel_on_group(Request& request) {
  Group* group = groups_.find(request.group_id);
  if (group == nullptr || group->running.get() != &request || group->cancelled_at) return;
  group->cancelled_at = clock_.now();
  protocol::Envelope envelope;
  envelope.mutable_cancel()->set_request_id(request.id);
  group->link->send(envelope);
}

Result<void> Scheduler::cancel(const std::string& id, const std::string& why) {
  const auto request = table_.find(id);
  if (!request) return error(Errc::kNotFound, "no request '{}'", id);
  if (request->state == RequestState::kDone) {
    if (request->lease != LeaseState::kActive) return {};
    return release_lease(id, request->result->manifest().lease_id());
  }
  cancel_on_group(*request);
  fail(request, Error(Errc::kCancelled, why));
  return {};
}

void Scheduler::abandon(const std::string& why) {
  for (const auto& request : table_.all()) {
    if (request->ended()) continue;
    cancel_on_group(*request);
    fail(request, Error(Errc::kUnavailable, why));
  }
}

// ---- groups ----

Result<void> Scheduler::add_group(const protocol::Register& description, GroupLink& link) {
  const std::string& id = description.group_id();
  if (auto older = groups_.remove(id)) {
    older->link->close("the group has opened another connection");
    lose(std::move(older), "it has opened another connection");
  }
  const auto added = groups_.add(description, link, attended_.passed());
  if (!added.ok()) return added.error();
  orphaned_since_.erase(description.model().name());
  probes_.groups(groups_.size());
  restore_leases(id);
  protocol::Envelope envelope;
  envelope.mutable_register_reply()->set_heartbeat_interval_ms(
      static_cast<uint32_t>(to_ms(settings_.heartbeat_interval)));
  envelope.mutable_register_reply()->set_patience_ms(
      static_cast<uint64_t>(to_ms(settings_.group_patience)));
  link.send(envelope);
  dispatch();
  return {};
}

void Scheduler::remove_group(const std::string& group_id, const GroupLink& link,
                             const std::string& why) {
  const Group* group = groups_.find(group_id);
  if (group == nullptr || group->link != &link) return;
  lose(groups_.remove(group_id), why);
}

void Scheduler::lose(std::unique_ptr<Group> group, const std::string& why) {
  const protocol::Register& who = group->description;
  probes_.groups(groups_.size());
  probes_.group_lost();
  probes_.group_gone(who.group_name());
  if (group->running) {
    fail(group->running,
         error(Errc::kPeerLost, "group '{}' (id {}) is lost: {}; send the request again",
               who.group_name(), who.group_id(), why));
  }
  for (const auto& request : table_.all()) {
    if (request->group_id != who.group_id()) continue;
    if (request->lease == LeaseState::kActive) end_lease(*request, LeaseState::kLost);
  }
  if (groups_.offers().count(who.model().name()) == 0) {
    orphaned_since_[who.model().name()] = clock_.now();
  }
}

void Scheduler::restore_leases(const std::string& group_id) {
  for (const auto& request : table_.all()) {
    if (request->group_id != group_id || request->lease != LeaseState::kLost ||
        request->lease_ends <= clock_.now()) {
      continue;
    }
    request->lease = LeaseState::kActive;
    table_.reschedule(*request);
  }
}

Result<void> Scheduler::receive(const std::string& group_id, protocol::Envelope envelope) {
  Group* group = groups_.find(group_id);
  if (group == nullptr) return {};  // taken over by another connection a moment ago
  group->last_heard = attended_.passed();
  switch (envelope.body_case()) {
    case protocol::Envelope::kHeartbeat:
      on_heartbeat(*group, envelope.heartbeat());
      break;
    case protocol::Envelope::kPrefillStarted:
      on_progress(*group, envelope.prefill_started().request_id());
      break;
    case protocol::Envelope::kPrefillOpened:
      on_prefill_opened(*group, std::move(*envelope.mutable_prefill_opened()));
      break;
    case protocol::Envelope::kLayerDone:
      on_layer_done(*group, envelope.layer_done());
      break;
    case protocol::Envelope::kPrefillDone:
      return on_prefill_done(*group, std::move(*envelope.mutable_prefill_done()));
    case protocol::Envelope::kPrefillFailed:
      on_prefill_failed(*group, envelope.prefill_failed());
      break;
    case protocol::Envelope::kLeaseHeld:
      return on_lease_held(*group, std::move(*envelope.mutable_lease_held()));
    case protocol::Envelope::kLeaseReply:
      return on_lease_reply(*group, envelope.lease_reply());
    case protocol::Envelope::kDrain:
      group->draining = true;
      break;
    default:
      return error(Errc::kInvalidArgument, "group '{}' sent message {}, which groups do not send",
                   group->description.group_name(), static_cast<int>(envelope.body_case()));
  }
  return {};
}

void Scheduler::ended(const Request& request) {
  probes_.ended(request);
  log_ended(request);
  changed(request);
}

void Scheduler::changed(const Request& request) {
  table_.reschedule(request);
  on_change_(request);
}

void Scheduler::count_waiting() {
  probes_.waiting(queue_.size(), running_);
}

}  // namespace millrace::coordinator
