// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/route.h"

#include <array>

#include "common/quote.h"
#include "coordinator/text/http_text.h"
#include "coordinator/text/request_id.h"

namespace millrace::coordinator {

namespace {

constexpr std::array<RouteEntry, 19> kEntries = {{
    {Endpoint::kPrefill, "POST", "/v1/prefill", "", PathId::kNone},
    {Endpoint::kForecast, "POST", "/v1/prefill:forecast", "", PathId::kNone},
    {Endpoint::kCompletion, "POST", "/v1/completions", "", PathId::kNone},
    {Endpoint::kChat, "POST", "/v1/chat/completions", "", PathId::kNone},
    {Endpoint::kGenerate, "POST", "/inference/v1/generate", "", PathId::kNone},
    {Endpoint::kStatus, "GET", "/v1/prefill/", "", PathId::kRequest},
    {Endpoint::kCancel, "DELETE", "/v1/prefill/", "", PathId::kRequest},
    {Endpoint::kEvents, "GET", "/v1/prefill/", "/events", PathId::kRequest},
    {Endpoint::kLeaseRenew, "POST", "/v1/prefill/", "/lease:renew", PathId::kRequest},
    {Endpoint::kLeaseRelease, "POST", "/v1/prefill/", "/lease:release", PathId::kRequest},
    {Endpoint::kModels, "GET", "/v1/models", "", PathId::kNone},
    {Endpoint::kModel, "GET", "/v1/models/", "", PathId::kModel},
    {Endpoint::kHealth, "GET", "/health", "", PathId::kNone},
    {Endpoint::kReady, "GET", "/ready", "", PathId::kNone},
    {Endpoint::kMetrics, "GET", "/metrics", "", PathId::kNone},
    {Endpoint::kVersion, "GET", "/version", "", PathId::kNone},
    {Endpoint::kPage, "GET", "/", "", PathId::kNone},
    {Endpoint::kOverview, "GET", "/overview", "", PathId::kNone},
    {Endpoint::kLayers, "GET", "/overview/", "", PathId::kRequest},
}};

bool matches(const RouteEntry& entry, std::string_view path, std::string* id) {
  if (entry.id == PathId::kNone) return path == entry.before_id;
  if (!path.starts_with(entry.before_id) || !path.ends_with(entry.after_id) ||
      path.size() < entry.before_id.size() + entry.after_id.size()) {
    return false;
  }
  const size_t length = path.size() - entry.before_id.size() - entry.after_id.size();
  // Some clients write ':' as %3A, and '/' as %2F.
  auto decoded = percent_decode(path.substr(entry.before_id.size(), length));
  if (!decoded.ok() || decoded->empty()) return false;
  if (entry.id == PathId::kRequest && !check_request_id(*decoded).ok()) return false;
  *id = *std::move(decoded);
  return true;
}

}  // namespace

std::span<const RouteEntry> all_routes() {
  return kEntries;
}

Route find_route(std::string_view method, std::string_view target) {
  const size_t question = target.find('?');
  Route route;
  route.method = method;
  route.path = target.substr(0, question);
  if (question != std::string_view::npos) route.query = target.substr(question + 1);
  for (const RouteEntry& entry : kEntries) {
    if (!matches(entry, route.path, &route.id)) continue;
    if (entry.method == method || (entry.method == "GET" && method == "HEAD")) {
      route.endpoint = entry.endpoint;
      return route;
    }
    route.endpoint = Endpoint::kWrongMethod;
    route.allow += route.allow.empty() ? "" : ", ";
    route.allow += entry.method == "GET" ? "GET, HEAD" : entry.method;
  }
  return route;
}

std::optional<Refusal> refuse_query(std::string_view query) {
  const auto parameters = parse_query(query);
  if (!parameters.ok()) return Refusal(parameters.error());
  if (parameters->empty()) return std::nullopt;
  const std::string& name = parameters->front().first;
  return Refusal(
      error(Errc::kInvalidArgument,
            "{} is in the query string, but this request takes its fields from the JSON body",
            quote(std::string_view(name))),
      name);
}

}  // namespace millrace::coordinator
