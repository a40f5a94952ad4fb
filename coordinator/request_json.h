// Requests and models as clients see them.
#pragma once

#include <boost/json/object.hpp>
#include <map>
#include <string>

#include "coordinator/group_registry.h"
#include "coordinator/request.h"

namespace millrace::coordinator {

// {"request_id", "status": "done", "model", "num_tokens", "first_token_id", "density", "recall",
//  "queue_seconds", "prefill_seconds", "group", "lease": {...}, "phases": {...}, "stages": {...},
//  "stored": {...}, "manifest": {...}}.
// The manifest is the protobuf JSON of protocol/manifest.proto under the original field names, so
// 64 bit numbers in it are strings.
boost::json::object done_json(const Request& request, TimePoint now);

// {"request_id", "manifest"} of a streaming request that is not done; it must be opened. The
// manifest is without the fields that only a result has.
boost::json::object opened_json(const Request& request);

// What GET answers: the above when done, otherwise status and progress, or the error.
boost::json::object status_json(const Request& request, TimePoint now);

// {"state", "lease_id", "expires_in_ms" while it is active} of a request that is done.
boost::json::object lease_json(const Request& request, TimePoint now);

// {"object": "list", "data": [{"id": ...}, ...]}
boost::json::object models_json(const std::map<std::string, ModelOffer>& offers);

}  // namespace millrace::coordinator
