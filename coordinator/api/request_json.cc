// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/request_json.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <span>

#include "coordinator/api/api_error.h"
#include "coordinator/api/manifest_json.h"

namespace millrace::coordinator {

namespace json = boost::json;

namespace {

const std::string& or_else(const std::string& text, const std::string& instead) {
  return text.empty() ? instead : text;
}

// `object` with one more member at the end, whose value is `text`.
std::string with_member(const json::object& object, const char* name, const std::string& text) {
  std::string out = json::serialize(object);
  out.back() = ',';
  out += fmt::format("\"{}\":", name);
  out += text;
  out += '}';
  return out;
}

}  // namespace

std::string manifest_text(const protocol::Manifest& manifest, std::string_view instance,
                          bool is_done) {
  // The first is written here, the others are known at the end.
  constexpr std::array<std::string_view, 8> kLeftOut = {
      "coordinator_instance", "first_token_id",   "top_logprobs", "density", "recall",
      "recall_p01",           "dense_for_length", "tiers"};
  std::string text = manifest_json(manifest, std::span(kLeftOut).first(is_done ? 1 : 8));
  text.back() = ',';
  text += fmt::format("\"coordinator_instance\":\"{}\"}}", instance);
  return text;
}

json::object lease_json(const Request& request, TimePoint now) {
  json::object lease;
  lease["state"] = std::string(lease_state_name(request.lease));
  lease["lease_id"] = request.result->manifest().lease_id();
  if (request.lease == LeaseState::kActive) {
    // A lease that has ended stays active until the next tick.
    const auto left = std::max(request.lease_ends - now, Duration::zero());
    lease["expires_in_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
  }
  return lease;
}

namespace {

json::array by_layer(const google::protobuf::RepeatedField<float>& shares, uint32_t num_heads) {
  json::array layers;
  for (int i = 0; i < shares.size(); ++i) {
    if (i % static_cast<int>(num_heads) == 0) layers.emplace_back(json::array());
    layers.back().as_array().push_back(number_or_null(double{shares[i]}));
  }
  return layers;
}

json::object head_recalls_json(const protocol::HeadRecalls& recalls) {
  return {{"mean", by_layer(recalls.mean(), recalls.num_heads())},
          {"least", by_layer(recalls.least(), recalls.num_heads())}};
}

// Everything except the manifest.
json::object done_json(const Request& request, TimePoint now) {
  const protocol::Manifest& manifest = request.result->manifest();
  json::object out;
  out["request_id"] = request.id;
  out["status"] = "done";
  out["model"] = request.model;
  out["num_tokens"] = request.num_tokens;
  out["cached_tokens"] = request.result->cached_tokens();
  out["first_token_id"] = manifest.first_token_id();
  out["density"] = number_or_null(manifest.density());
  out["recall"] = number_or_null(manifest.recall());
  out["recall_p01"] = number_or_null(manifest.recall_p01());
  out["dense_for_length"] = manifest.dense_for_length();
  out["group"] = request.group_name;
  out["queue_seconds"] = request.queue_s(now);
  out["prefill_seconds"] = seconds(*request.ended_at - *request.started_at);
  out["set_aside_seconds"] = request.set_aside_s;
  out["times_set_aside"] = request.times_set_aside;
  out["joined"] = request.role == RequestRole::kJoined;
  out["lease"] = lease_json(request, now);
  json::object phases;
  for (const auto& phase : request.result->phases())
    phases[phase.phase()] = number_or_null(phase.seconds());
  out["phases"] = std::move(phases);
  json::object stages;
  for (const auto& stage : request.result->stages())
    stages[stage.stage()] = number_or_null(stage.seconds());
  out["stages"] = std::move(stages);
  out["stored"] = {{"bytes", request.result->stored().bytes()},
                   {"while_computing", request.result->stored().while_computing()}};
  if (request.result->has_dropped()) {
    const auto& dropped = request.result->dropped();
    out["dropped"] = {{"pages", dropped.pages()},
                      {"bytes", dropped.bytes()},
                      {"mass", number_or_null(dropped.mass())}};
  }
  const protocol::HeadRecalls& recalls = request.result->head_recalls();
  if (recalls.num_heads() > 0) out["recall_by_head"] = head_recalls_json(recalls);
  return out;
}

}  // namespace

std::string done_text(const Request& request, TimePoint now, const ResultTexts& texts) {
  json::object done = done_json(request, now);
  if (texts.first_token_text) done["first_token_text"] = json::value_from(*texts.first_token_text);
  return with_member(done, "manifest", texts.manifest);
}

std::string opened_text(const Request& request, const std::string& manifest) {
  json::object out;
  out["request_id"] = request.id;
  return with_member(out, "manifest", manifest);
}

std::string forecast_text(const std::string& model, int64_t num_tokens, const ExpectedEnd& end) {
  return json::serialize(json::object{{"model", model},
                                      {"num_tokens", num_tokens},
                                      {"cached_tokens", end.cached_tokens},
                                      {"queue_seconds", seconds(end.wait)},
                                      {"prefill_seconds", seconds(end.prefill)},
                                      {"is_learnt", end.is_learnt}});
}

std::string status_text(const Request& request, TimePoint now, const ResultTexts& texts) {
  if (request.state == RequestState::kDone) return done_text(request, now, texts);
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
  return json::serialize(out);
}

json::object progress_json(const Request& request, TimePoint now) {
  const bool runs = request.state == RequestState::kRunning && request.num_layers > 0;
  const int64_t num_layers = runs ? request.num_layers : 0;
  const int64_t layers_done = runs ? std::ssize(request.layer_density) : 0;
  const int64_t cached = runs ? request.foreseen_tokens : 0;
  const int64_t computed =
      runs ? (request.num_tokens - cached) * std::min(layers_done, num_layers) / num_layers : 0;
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - request.queued_at);
  return {{"status", std::string(request_state_name(request.state))},
          {"total", request.num_tokens},
          {"cache", cached},
          {"processed", cached + computed},
          {"time_ms", since.count()},
          {"layers_done", layers_done},
          {"num_layers", num_layers}};
}

json::object model_json(const std::string& name, const ModelOffer& offer, int64_t created_s) {
  const protocol::ModelDescription& model = offer.description;
  return {{"id", name},
          {"object", "model"},
          {"created", created_s},
          {"owned_by", "millrace"},
          {"max_prompt_tokens", offer.max_prompt_tokens},
          {"vocab_size", model.vocab_size()},
          {"num_layers", model.num_layers()},
          {"num_kv_heads", model.num_kv_heads()},
          {"head_dim", model.head_dim()},
          {"dtype", model.dtype()},
          {"quantization", or_else(model.quantization(), "none")},
          {"kv_cache_dtype", or_else(model.kv_cache_dtype(), model.dtype())},
          {"groups", offer.num_groups},
          {"ready_groups", offer.num_ready}};
}

json::object models_json(const std::map<std::string, ModelOffer>& offers, int64_t created_s) {
  json::array data;
  for (const auto& [name, offer] : offers) data.push_back(model_json(name, offer, created_s));
  return json::object{{"object", "list"}, {"data", std::move(data)}};
}

}  // namespace millrace::coordinator
