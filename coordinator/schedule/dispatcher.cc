#include "coordinator/schedule/dispatcher.h"

#include <algorithm>

#include "coordinator/groups/group_choice.h"
#include "coordinator/groups/room_forecast.h"
#include "coordinator/requests/wire_duration.h"

namespace millrace::coordinator {

namespace {

// A request that so many groups fail by what looks like their own fault is at fault itself.
constexpr size_t kMaxFailures = 2;

bool is_at_fault(const Request& request) {
  return request.failed_on.size() >= kMaxFailures;
}

}  // namespace

bool Dispatcher::any_idle() const {
  const auto all = groups_.all();
  return std::any_of(all.begin(), all.end(), [](const Group* group) { return group->idle(); });
}

void Dispatcher::dispatch() {
  // Requests that were given back are in front and looked at always, as they may have to end. The
  // others wait while no group is idle. Collected first: starting one changes the queue.
  std::vector<std::shared_ptr<Request>> candidates;
  bool idle = any_idle();
  for (const auto& request : requests_.queue().waiting()) {
    if (!idle && !request->given_back) break;
    candidates.push_back(request);
  }
  for (const auto& request : candidates) {
    if (!idle && !request->given_back) break;
    const auto all = groups_.all();
    if (Group* group = choose_group(all, *request, clock_.now())) {
      start(*group, request);
      idle = any_idle();
    } else if (request->given_back && !has_untried_group(all, *request)) {
      give_up(request);
    }
  }
}

void Dispatcher::start(Group& group, const std::shared_ptr<Request>& request) {
  const Duration left = request->queued_at + request->deadline_after() - clock_.now();
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_prefill_request();
  message.set_request_id(request->id);
  message.set_prompt_token_ids(request->prompt);
  *message.mutable_options() = request->options;
  message.mutable_options()->set_deadline_ms(
      std::max<uint64_t>(1, to_wire_ms(left)));  // 0 would be none
  requests_.assign(request);
  request->group_id = group.description.group_id();
  request->group_name = group.description.group_name();
  request->num_layers = group.description.model().num_layers();
  group.count_room(-request->num_tokens);
  group.cancelled_at.reset();
  group.running = request;
  group.link->send(envelope);
}

void Dispatcher::take_back(const std::shared_ptr<Request>& request, Error why) {
  request->given_back = std::move(why);
  if (is_at_fault(*request) || !has_untried_group(groups_.all(), *request)) {
    give_up(request);
  } else {
    requests_.requeue(request);
  }
}

void Dispatcher::give_up(const std::shared_ptr<Request>& request) {
  if (is_at_fault(*request)) {
    for (const auto& id : request->failed_on) {
      if (Group* group = groups_.find(id)) group->health.pardon();
    }
  }
  Refusal why(*request->given_back);
  if (why.error.code == Errc::kExhausted) {
    why.retry_after_s =
        seconds_until_room(*request, groups_.all(), requests_.table().all(), clock_.now());
  }
  requests_.fail(request, std::move(why));
}

}  // namespace millrace::coordinator
