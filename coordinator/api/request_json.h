// SPDX-License-Identifier: Apache-2.0
// Requests and models as clients see them.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/groups/group_registry.h"
#include "coordinator/order/expected_end.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

// The protobuf JSON of protocol/manifest.proto with the original field names; 64-bit numbers are
// strings, NaN and infinity are null. Before the prefill is done, it lacks the fields that only a
// result has. `instance`: of this coordinator. A group may send a large manifest, so do not call
// this on the deciding thread.
std::string manifest_text(const protocol::Manifest& manifest, std::string_view instance,
                          bool is_done);

// The parts of a result that are made elsewhere.
struct ResultTexts {
  std::string manifest;  // manifest_text()
  // For models with a tokenizer; the inner one is nullopt where the tokenizer failed.
  std::optional<std::optional<std::string>> first_token_text;
};

// {"request_id", "status": "done", "model", "num_tokens", "first_token_id", "density", "recall",
//  "queue_seconds", "prefill_seconds", "group", "lease": {...}, "phases": {...}, "stages": {...},
//  "stored": {...}, "manifest": {...}}.
std::string done_text(const Request& request, TimePoint now, const ResultTexts& texts);

// {"request_id", "manifest"} of a streaming request that is not done but has been opened.
std::string opened_text(const Request& request, const std::string& manifest);

// What GET answers: done_text() for a request that is done, otherwise status and progress, or the
// error.
std::string status_text(const Request& request, TimePoint now, const ResultTexts& texts);

// {"model", "num_tokens", "cached_tokens", "queue_seconds", "prefill_seconds", "is_learnt"}.
std::string forecast_text(const std::string& model, int64_t num_tokens, const ExpectedEnd& end);

// {"status", "total", "processed", "cache", "time_ms", "layers_done", "num_layers"} of a request
// that waits or runs, in tokens; `num_layers` is 0 while it waits.
boost::json::object progress_json(const Request& request, TimePoint now);

// {"state", "lease_id", "expires_in_ms" while it is active} of a request that is done.
boost::json::object lease_json(const Request& request, TimePoint now);

// {"id": ..., "object": "model", ...}. `created_s`, Unix time, is for clients that insist on
// OpenAI's shape.
boost::json::object model_json(const std::string& name, const ModelOffer& offer, int64_t created_s);

// {"object": "list", "data": [the models]}.
boost::json::object models_json(const std::map<std::string, ModelOffer>& offers, int64_t created_s);

// A number from a group as JSON, which has no NaN and no infinity.
inline boost::json::value number_or_null(double value) {
  return std::isfinite(value) ? boost::json::value(value) : boost::json::value(nullptr);
}

}  // namespace millrace::coordinator
