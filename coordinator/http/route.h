// Which of our endpoints a method and a request target name. Pure. What takes GET takes HEAD.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "coordinator/api/api_error.h"

namespace millrace::coordinator {

enum class Endpoint {
  kPrefill,       // POST /v1/prefill
  kStatus,        // GET /v1/prefill/{id}
  kCancel,        // DELETE /v1/prefill/{id}
  kEvents,        // GET /v1/prefill/{id}/events
  kLeaseRenew,    // POST /v1/prefill/{id}/lease:renew
  kLeaseRelease,  // POST /v1/prefill/{id}/lease:release
  kModels,        // GET /v1/models
  kHealth,        // GET /health
  kReady,         // GET /ready
  kMetrics,       // GET /metrics
  kVersion,       // GET /version
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

Route find_route(std::string_view method, std::string_view target);

// Of a request whose fields are its JSON body: blames the first parameter, if there is any, so that
// none is passed over in silence.
std::optional<ApiError> refuse_query(std::string_view query);

}  // namespace millrace::coordinator
