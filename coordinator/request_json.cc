#include "coordinator/request_json.h"

#include <google/protobuf/util/json_util.h>

#include <boost/json.hpp>

#include "coordinator/api_error.h"

namespace millrace::coordinator {

namespace json = boost::json;

namespace {

json::value manifest_json(const protocol::Manifest& manifest) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(manifest, &text, options);
  MR_CHECK(status.ok(), "manifest as JSON: {}", status.ToString());
  return json::parse(text);
}

}  // namespace

json::object lease_json(const Request& request, TimePoint now) {
  json::object lease;
  lease["state"] = std::string(lease_state_name(request.lease));
  lease["lease_id"] = request.result->manifest().lease_id();
  if (request.lease == LeaseState::kActive) {
    lease["expires_in_ms"] =
        std::chrono::duration_cast<std::chrono::milliseconds>(request.lease_ends - now).count();
  }
  return lease;
}

json::object done_json(const Request& request, TimePoint now) {
  const protocol::Manifest& manifest = request.result->manifest();
  json::object out;
  out["request_id"] = request.id;
  out["status"] = "done";
  out["model"] = request.model;
  out["num_tokens"] = request.num_tokens;
  out["first_token_id"] = manifest.first_token_id();
  out["density"] = manifest.density();
  out["recall"] = manifest.recall();
  out["group"] = request.group_name;
  out["queue_seconds"] = request.queue_s(now);
  out["prefill_seconds"] = seconds(*request.ended_at - *request.started_at);
  out["lease"] = lease_json(request, now);
  json::object phases;
  for (const auto& phase : request.result->phases()) phases[phase.phase()] = phase.seconds();
  out["phases"] = std::move(phases);
  json::object stages;
  for (const auto& stage : request.result->stages()) stages[stage.stage()] = stage.seconds();
  out["stages"] = std::move(stages);
  out["stored"] = {{"bytes", request.result->stored().bytes()},
                   {"while_computing", request.result->stored().while_computing()}};
  out["manifest"] = manifest_json(manifest);
  return out;
}

json::object opened_json(const Request& request) {
  json::value manifest = manifest_json(*request.opened);
  for (const char* field : {"first_token_id", "top_logprobs", "density", "recall", "tiers"}) {
    manifest.as_object().erase(field);
  }
  return {{"request_id", request.id}, {"manifest", std::move(manifest)}};
}

json::object status_json(const Request& request, TimePoint now) {
  if (request.state == RequestState::kDone) return done_json(request, now);
  json::object out;
  out["request_id"] = request.id;
  out["status"] = std::string(request_state_name(request.state));
  out["model"] = request.model;
  out["num_tokens"] = request.num_tokens;
  out["queue_seconds"] = request.queue_s(now);
  if (!request.group_name.empty()) {
    out["group"] = request.group_name;
    out["progress"] = json::object{{"layers_done", request.layer_density.size()},
                                   {"num_layers", request.num_layers}};
  }
  if (request.failure) {
    out["error"] = json::parse(ApiError(*request.failure).to_json()).at("error");
  }
  return out;
}

json::object models_json(const std::map<std::string, ModelOffer>& offers) {
  json::array data;
  for (const auto& [name, offer] : offers) {
    data.push_back(json::object{{"id", name},
                                {"object", "model"},
                                {"max_prompt_tokens", offer.max_prompt_tokens},
                                {"vocab_size", offer.description.vocab_size()},
                                {"num_layers", offer.description.num_layers()},
                                {"dtype", offer.description.dtype()},
                                {"groups", offer.num_groups},
                                {"ready_groups", offer.num_ready}});
  }
  return json::object{{"object", "list"}, {"data", std::move(data)}};
}

}  // namespace millrace::coordinator
