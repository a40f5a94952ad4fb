// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/canceller.h"

namespace millrace::coordinator {

namespace {

std::string place_of(const Request& request) {
  if (request.state == RequestState::kQueued) return "while the request was waiting for a group";
  return fmt::format("on group '{}' after {} of {} layers", request.group_name,
                     request.layer_density.size(), request.num_layers);
}

}  // namespace

void Canceller::cancel(const std::shared_ptr<Request>& request, Error why) {
  notify_group(*request);
  requests_.fail(request, std::move(why));
}

void Canceller::cancel_all(const Error& why) {
  for (const auto& request : requests_.table().all()) {
    if (!request->ended()) cancel(request, why);
  }
}

void Canceller::expire_deadlines(const Leave& leave) {
  const TimePoint now = clock_.now();
  while (const auto request = requests_.table().first_due(RequestTable::Due::kDeadline, now)) {
    leave(request, error(Errc::kDeadlineExceeded, "deadline of {:.3f} s passed {}",
                         seconds(request->deadline_after()), place_of(*request)));
  }
}

void Canceller::notify_group(const Request& request) {
  Group* group = groups_.find(request.group_id);
  const auto known = group == nullptr ? nullptr : group->find(request.id_at_group());
  if (known.get() != &request || known->cancel_sent_at) return;
  known->cancel_sent_at = clock_.now();
  protocol::Envelope envelope;
  envelope.mutable_cancel()->set_request_id(request.id_at_group());
  group->link->send(envelope);
}

}  // namespace millrace::coordinator
