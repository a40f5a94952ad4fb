#include "coordinator/http/request_gate.h"

#include <algorithm>
#include <utility>

namespace millrace::coordinator {

RequestGate::RequestGate(const HttpLimits& limits, ConnectionTable::Admission admission,
                         BodyBudget& bodies, std::string client)
    : limits_(limits), admission_(std::move(admission)), share_(bodies, std::move(client)) {}

std::optional<Refusal> RequestGate::check(const Route& route, uint64_t announced_bytes) {
  if (only_probes() && !is_probe(route)) return *admission_.only_probes;
  const uint64_t max_bytes = max_body_bytes(route);
  if (announced_bytes > max_bytes) {
    return error(Errc::kTooLarge, "body of {} bytes, limit {}", announced_bytes, max_bytes);
  }
  return hold(route, announced_bytes);
}

std::optional<Refusal> RequestGate::hold(const Route& route, uint64_t bytes) {
  // A string that grows takes up to twice its length; a body of the largest size still fits.
  const uint64_t counted = std::min(bytes, max_body_bytes(route));
  // Small bodies are always let in: leases are released while prompts are turned away.
  if (counted <= limits_.max_small_body_bytes) return std::nullopt;
  const Result<void> held = share_.grow_to(counted);
  if (held.ok()) return std::nullopt;
  return held.error();
}

uint64_t RequestGate::max_body_bytes(const Route& route) const {
  const bool has_prompt =
      route.endpoint == Endpoint::kPrefill || route.endpoint == Endpoint::kCompletion;
  return has_prompt ? limits_.max_body_bytes : limits_.max_small_body_bytes;
}

bool RequestGate::is_probe(const Route& route) const {
  switch (route.endpoint) {
    case Endpoint::kHealth:
    case Endpoint::kReady:
    case Endpoint::kMetrics:
      return true;
    case Endpoint::kVersion:
      return admission_.kind == ConnectionTable::Kind::kAdmin;
    default:
      return false;
  }
}

}  // namespace millrace::coordinator
