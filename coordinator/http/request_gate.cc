// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/request_gate.h"

#include <algorithm>
#include <utility>

#include "coordinator/access/bearer.h"
#include "coordinator/http/http_reply.h"

namespace millrace::coordinator {

namespace {

// The scope that a token must have; nullopt: no token is needed.
std::optional<Scope> needed_scope(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kHealth:
    case Endpoint::kReady:
      return std::nullopt;
    case Endpoint::kPrefill:
    case Endpoint::kForecast:
    case Endpoint::kCompletion:
    case Endpoint::kChat:
    case Endpoint::kGenerate:
    case Endpoint::kCancel:
      return Scope::kPrefill;
    case Endpoint::kMetrics:
    case Endpoint::kPage:
    case Endpoint::kOverview:
    case Endpoint::kLayers:
      return Scope::kAdmin;
    default:
      return Scope::kRead;
  }
}

const char* name_of(Scope scope) {
  return scope == Scope::kAdmin ? "admin" : scope == Scope::kPrefill ? "prefill" : "read";
}

}  // namespace

RequestGate::RequestGate(const HttpLimits& limits, const TokenTable& tokens,
                         ConnectionTable::Admission admission, BodyBudget& bodies,
                         std::string client)
    : limits_(limits),
      tokens_(tokens),
      admission_(std::move(admission)),
      share_(bodies, std::move(client)) {}

std::optional<ApiError> RequestGate::check(const Route& route, std::string_view authorization,
                                           uint64_t announced_bytes) {
  if (only_health_probes() && !is_health_probe(route))
    return ApiError(*admission_.only_health_probes);
  if (auto stranger = identify(route, authorization)) return stranger;
  const uint64_t max_bytes = max_body_bytes(route);
  if (announced_bytes > max_bytes) {
    return ApiError(
        error(Errc::kTooLarge, "body of {} bytes, limit {}", announced_bytes, max_bytes));
  }
  if (auto no_room = hold(route, announced_bytes)) return ApiError(*std::move(no_room));
  return std::nullopt;
}

std::optional<ApiError> RequestGate::identify(const Route& route, std::string_view authorization) {
  caller_ = Caller::anybody();
  if (!tokens_.asks()) return std::nullopt;
  if (admission_.kind == ConnectionTable::Kind::kAdmin) {
    caller_ = viewer(authorization);
    return std::nullopt;
  }
  const std::optional<Scope> needed = needed_scope(route.endpoint);
  if (!needed) return std::nullopt;
  if (authorization.empty()) {
    return ApiError(Error(Errc::kDenied, "this needs a token: 'Authorization: Bearer TOKEN'"),
                    kUnauthorized);
  }
  const Result<std::string_view> token = bearer_token(authorization);
  if (!token.ok()) return ApiError(token.error(), kUnauthorized);
  Result<Caller> caller = tokens_.identify(*token);
  if (!caller.ok()) return ApiError(caller.error(), kUnauthorized);
  if (!caller->may(*needed)) {
    return ApiError(error(Errc::kDenied, "this token of '{}' has the scope {}; this needs {}",
                          caller->name, name_of(caller->scope), name_of(*needed)));
  }
  caller_ = *std::move(caller);
  return std::nullopt;
}

// The admin port answers everybody who reaches it, but only admins see whose requests there are.
Caller RequestGate::viewer(std::string_view authorization) const {
  const Result<std::string_view> token = bearer_token(authorization);
  if (!token.ok()) return {};
  Result<Caller> known = tokens_.identify(*token);
  return known.ok() ? *std::move(known) : Caller{};
}

std::optional<Refusal> RequestGate::hold(const Route& route, uint64_t bytes) {
  // A growing string takes up to twice its length; a body of the largest size still fits.
  const uint64_t counted = std::min(bytes, max_body_bytes(route));
  // Small bodies are always let in: leases are released while prompts are turned away.
  if (counted <= limits_.max_small_body_bytes) return std::nullopt;
  const Result<void> held = share_.grow_to(counted);
  if (held.ok()) return std::nullopt;
  return held.error();
}

uint64_t RequestGate::max_body_bytes(const Route& route) const {
  switch (route.endpoint) {
    case Endpoint::kPrefill:
    case Endpoint::kForecast:
    case Endpoint::kCompletion:
    case Endpoint::kChat:
    case Endpoint::kGenerate:
      return limits_.max_body_bytes;
    default:
      return limits_.max_small_body_bytes;
  }
}

bool RequestGate::is_health_probe(const Route& route) const {
  switch (route.endpoint) {
    case Endpoint::kHealth:
    case Endpoint::kReady:
    case Endpoint::kMetrics:
      return true;
    case Endpoint::kVersion:
    case Endpoint::kPage:
    case Endpoint::kOverview:
    case Endpoint::kLayers:
      return admission_.kind == ConnectionTable::Kind::kAdmin;
    default:
      return false;
  }
}

}  // namespace millrace::coordinator
