// SPDX-License-Identifier: Apache-2.0
// The endpoint that a method and a request target name. Pure. Every endpoint that takes GET takes
// HEAD.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "coordinator/requests/refusal.h"

namespace millrace::coordinator {

enum class Endpoint {
  kPrefill,       // POST /v1/prefill
  kForecast,      // POST /v1/prefill:forecast
  kCompletion,    // POST /v1/completions
  kChat,          // POST /v1/chat/completions
  kGenerate,      // POST /inference/v1/generate
  kStatus,        // GET /v1/prefill/{id}
  kCancel,        // DELETE /v1/prefill/{id}
  kEvents,        // GET /v1/prefill/{id}/events
  kLeaseRenew,    // POST /v1/prefill/{id}/lease:renew
  kLeaseRelease,  // POST /v1/prefill/{id}/lease:release
  kModels,        // GET /v1/models
  kModel,         // GET /v1/models/{id}
  kHealth,        // GET /health
  kReady,         // GET /ready
  kMetrics,       // GET /metrics
  kVersion,       // GET /version
  kPage,          // GET /
  kOverview,      // GET /overview
  kLayers,        // GET /overview/{id}
  kNone,          // no such path: 404
  kWrongMethod,   // 405
};

struct Route {
  Endpoint endpoint = Endpoint::kNone;
  std::string method;
  std::string path;
  std::string id;
  std::string query;
  std::string allow;  // of kWrongMethod: what the path takes, as "GET, HEAD"
};

// Whose id a path has in it.
enum class PathId {
  kNone,
  kRequest,
  kModel,  // which may have slashes, as org/name
};

// A path is `before_id`, or with an id in it `before_id` + id + `after_id`.
struct RouteEntry {
  Endpoint endpoint;
  std::string_view method;
  std::string_view before_id;
  std::string_view after_id;
  PathId id;
};

// All routes; those that take GET take HEAD without an entry of its own.
std::span<const RouteEntry> all_routes();

Route find_route(std::string_view method, std::string_view target);

// For a request whose fields are in a JSON body: refuses the first query parameter if there is one,
// so that none is silently ignored.
std::optional<Refusal> refuse_query(std::string_view query);

}  // namespace millrace::coordinator
