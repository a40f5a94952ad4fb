// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracing/request_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace millrace::coordinator {

using tracing::Attributes;
using tracing::Span;

namespace {

// What groups report (protocol/control_messages.proto). Other names are left out, so that a group
// cannot make up attributes.
constexpr std::array<std::string_view, 8> kPhases = {"embed",     "qkv", "exchange", "estimate",
                                                     "attention", "mlp", "store",    "logits"};
constexpr std::array<std::string_view, 3> kTierNames = {"device", "host", "disk"};
constexpr std::array<std::string_view, 4> kStages = {"start", "layers", "tail", "close"};

// The first HTTP status that is the server's fault.
constexpr int kServerError = 500;

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& known, std::string_view name) {
  return std::ranges::find(known, name) != known.end();
}

bool is_time(double time_s) {
  return std::isfinite(time_s) && time_s >= 0;
}

void put(Attributes& attributes, std::string name, auto value) {
  attributes.push_back({std::move(name), std::move(value)});
}

void put_error(Span& span, std::string_view code) {
  span.failed = true;
  put(span.attributes, "error.type", std::string(code));
}

Attributes call_attributes(const RequestTrace::Call& call) {
  return {{"http.request.method", call.method},
          {"http.route", call.path},
          {"url.path", call.path},
          {"gen_ai.operation.name", call.operation},
          {"gen_ai.provider.name", std::string("millrace")}};
}

Attributes request_attributes(const Request& request) {
  Attributes all{{"gen_ai.request.model", request.model},
                 {"gen_ai.response.model", request.model},
                 {"gen_ai.response.id", request.id},
                 {"gen_ai.usage.input_tokens", request.num_tokens}};
  if (!request.owner.empty()) put(all, "millrace.owner", request.owner);
  if (request.priority() != 0) put(all, "millrace.priority", int64_t{request.priority()});
  if (request.result) {
    put(all, "gen_ai.usage.output_tokens", int64_t{1});
    put(all, "gen_ai.usage.cache_read.input_tokens",
        static_cast<int64_t>(request.result->cached_tokens()));
  }
  return all;
}

void put_result(Attributes& all, const protocol::PrefillDone& done) {
  const protocol::Manifest& manifest = done.manifest();
  put(all, "millrace.cached_tokens", static_cast<int64_t>(done.cached_tokens()));
  put(all, "millrace.density", manifest.density());
  put(all, "millrace.recall", manifest.recall());
  put(all, "millrace.recall_p01", manifest.recall_p01());
  put(all, "millrace.tp", int64_t{manifest.tp()});
  put(all, "millrace.cp", int64_t{manifest.cp()});
  put(all, "millrace.in_lane", done.in_lane());
  for (const auto& tier : manifest.tiers()) {
    if (!is_one_of(kTierNames, tier.tier())) continue;
    put(all, "millrace.pages." + tier.tier(), static_cast<int64_t>(tier.pages()));
  }
  for (const auto& phase : done.phases()) {
    if (!is_one_of(kPhases, phase.phase()) || !is_time(phase.seconds())) continue;
    put(all, "millrace.phase." + phase.phase() + ".seconds", phase.seconds());
  }
}

}  // namespace

Span RequestTrace::part(std::string name, TimePoint begin, TimePoint end) const {
  Span span;
  span.trace_id = call_.own.trace_id;
  span.span_id = tracing::make_span_id();
  span.parent_id = call_.own.span_id;
  span.name = std::move(name);
  span.begin = begin;
  span.end = std::max(begin, end);
  return span;
}

void RequestTrace::tokenized(TimePoint begin, TimePoint end) {
  spans_.push_back(part("tokenize", begin, end));
}

void RequestTrace::changed(const Request& request, TimePoint now) {
  if (record_id_.empty()) {
    record_id_ = request.id;
    waits_since_ = request.queued_at;
  }
  if (request.id != record_id_) return;
  if (ended_) {
    hand_over(request, now);
    return;
  }
  if (request.started_at && !prefill_) begin_prefill(request);
  if (request.opened && !opened_at_) opened_at_ = now;
  if (prefill_ && request.started_at) {
    auto& layers = prefill_->events;
    while (layers.size() < request.layer_density.size()) {
      const size_t layer = layers.size();
      layers.push_back({"layer",
                        now,
                        {{"millrace.layer", static_cast<int64_t>(layer)},
                         {"millrace.density", request.layer_density[layer]}}});
    }
  }
  if (request.ended()) {
    end(request);
  } else if (prefill_ && !request.started_at) {
    // Its group gave it back or is lost; it waits for another try.
    end_prefill(now, request.given_back ? &*request.given_back : nullptr);
    waits_since_ = now;
  }
}

void RequestTrace::begin_prefill(const Request& request) {
  spans_.push_back(part("queue", *waits_since_, *request.started_at));
  waits_since_.reset();
  prefill_ = part("prefill", *request.started_at, *request.started_at);
  auto& attributes = prefill_->attributes;
  put(attributes, "millrace.group", request.group_name);
  put(attributes, "millrace.num_layers", int64_t{request.num_layers});
  put(attributes, "millrace.between_layers", request.between_layers);
  put(attributes, "millrace.side_by_side", int64_t{request.num_side_by_side});
}

void RequestTrace::end_prefill(TimePoint end, const Error* failure) {
  prefill_->end = std::max(prefill_->begin, end);
  if (failure != nullptr) put_error(*prefill_, errc_name(failure->code));
  spans_.push_back(*std::exchange(prefill_, std::nullopt));
}

void RequestTrace::end(const Request& request) {
  ended_ = true;
  if (waits_since_) {
    spans_.push_back(part("queue", *waits_since_, *request.ended_at));
    waits_since_.reset();
  }
  attributes_ = request_attributes(request);
  if (request.failure) error_ = errc_name(request.failure->error.code);
  if (!prefill_) return;
  auto& attributes = prefill_->attributes;
  put(attributes, "millrace.times_set_aside", int64_t{request.times_set_aside});
  put(attributes, "millrace.set_aside_seconds", request.set_aside_s);
  if (request.result) {
    put_result(attributes, *request.result);
    add_stages(request);
  }
  end_prefill(*request.ended_at, request.failure ? &request.failure->error : nullptr);
}

// They follow one another from the start on, by rank 0's clock. What is beyond the end as this process
// knows it is cut off.
void RequestTrace::add_stages(const Request& request) {
  const TimePoint last = *request.ended_at;
  TimePoint begin = prefill_->begin;
  for (const auto& stage : request.result->stages()) {
    if (!is_one_of(kStages, stage.stage()) || !is_time(stage.seconds())) continue;
    const double left_s = seconds(last - begin);
    const TimePoint stage_end = stage.seconds() >= left_s
                                    ? last
                                    : begin + std::chrono::duration_cast<Duration>(
                                                  std::chrono::duration<double>(stage.seconds()));
    Span span = part(stage.stage(), begin, stage_end);
    span.parent_id = prefill_->span_id;
    span.service = "millrace-worker";
    span.instance = request.group_name;
    spans_.push_back(std::move(span));
    begin = stage_end;
  }
}

void RequestTrace::hand_over(const Request& request, TimePoint now) {
  if (handed_over_ || request.state != RequestState::kDone ||
      request.lease == LeaseState::kActive) {
    return;
  }
  handed_over_ = true;
  Span span = part("hand-over", opened_at_.value_or(*request.ended_at), now);
  put(span.attributes, "millrace.lease", std::string(lease_state_name(request.lease)));
  put(span.attributes, "millrace.group", request.group_name);
  if (request.lease == LeaseState::kLost) put_error(span, errc_name(Errc::kPeerLost));
  spans_.push_back(std::move(span));
}

void RequestTrace::answered(int status, TimePoint now) {
  if (std::exchange(answered_, true)) return;
  Span span = part(call_.method + " " + call_.path, call_.received, now);
  span.span_id = call_.own.span_id;
  span.parent_id = call_.parent_id;
  span.kind = Span::Kind::kServer;
  span.attributes = call_attributes(call_);
  if (status != 0) put(span.attributes, "http.response.status_code", int64_t{status});
  if (status >= kServerError && error_.empty()) error_ = std::to_string(status);
  spans_.push_back(std::move(span));
}

std::vector<Span> RequestTrace::take() {
  if (!answered_ || (!record_id_.empty() && !ended_)) return {};
  for (Span& span : spans_) {
    if (span.span_id != call_.own.span_id) continue;
    span.attributes.insert(span.attributes.end(), attributes_.begin(), attributes_.end());
    if (!error_.empty()) put_error(span, error_);
  }
  return std::exchange(spans_, {});
}

}  // namespace millrace::coordinator
