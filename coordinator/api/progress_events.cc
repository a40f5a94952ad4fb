// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/progress_events.h"

#include <boost/json.hpp>

#include "coordinator/api/api_error.h"
#include "coordinator/api/request_json.h"
#include "protocol/sse_parser.h"

namespace millrace::coordinator {

namespace json = boost::json;

namespace {

std::string event(std::string name, std::string data) {
  return to_text(protocol::SseEvent{std::move(name), std::move(data)});
}
std::string event(std::string name, const json::object& data) {
  return event(std::move(name), json::serialize(data));
}

}  // namespace

std::string ProgressEvents::take(TimePoint now) {
  const Request& request = *request_;
  std::string out;
  if (!std::exchange(queued_, true)) {
    out += event("queued", {{"request_id", request.id}, {"num_tokens", request.num_tokens}});
  }
  if (request.started_at && !std::exchange(started_, true)) {
    out += event("started", {{"request_id", request.id},
                             {"group", request.group_name},
                             {"queue_seconds", request.queue_s(now)}});
  }
  if (request.opened && !opened_text_.empty() && !std::exchange(opened_, true)) {
    out += event("manifest", opened_text(request, std::exchange(opened_text_, {})));
  }
  for (; layers_ < request.layer_density.size(); ++layers_) {
    out += event("layer", {{"request_id", request.id},
                           {"layer", layers_},
                           {"num_layers", request.num_layers},
                           {"density", number_or_null(request.layer_density[layers_])}});
  }
  const bool shown = request.state != RequestState::kDone || !texts_.manifest.empty();
  if (request.ended() && shown && !std::exchange(finished_, true)) {
    out += request.state == RequestState::kDone
               ? event("done", done_text(request, now, std::exchange(texts_, {})))
               : event("error", ApiError(*request.failure).to_json(request.id));
  }
  return out;
}

std::string ProgressEvents::keep_alive(TimePoint now) const {
  if (!tells_progress_) return kPing;
  json::object progress{{"request_id", request_->id}};
  for (auto& member : progress_json(*request_, now)) {
    progress[member.key()] = std::move(member.value());
  }
  return event("progress", progress);
}

}  // namespace millrace::coordinator
