// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/lease_body.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <span>

#include "common/quote.h"
#include "common/text/read_json.h"

namespace millrace::coordinator {

namespace {

namespace json = boost::json;

const json::value* field(const json::value& body, const char* name) {
  const json::object* fields = body.if_object();
  return fields == nullptr ? nullptr : fields->if_contains(name);
}

Refusal malformed(const Error& why) {
  return Refusal(error(why.code, "malformed JSON at {}", why.message), "lease_id");
}

std::variant<LeaseBody, Refusal> read_lease_id(const json::value& body,
                                               std::span<const std::string_view> known) {
  const json::value* lease_id = field(body, "lease_id");
  if (lease_id == nullptr || !lease_id->is_string()) {
    return Refusal(Error(Errc::kInvalidArgument, "the body must be JSON with a string 'lease_id'"),
                   "lease_id");
  }
  for (const auto& member : body.get_object()) {
    const std::string name(member.key());
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Refusal(error(Errc::kInvalidArgument, "unknown field {}; known: {}",
                           quote(std::string_view(name)), fmt::join(known, ", ")),
                     name);
    }
  }
  return LeaseBody{.lease_id = std::string(lease_id->get_string())};
}

}  // namespace

std::variant<LeaseBody, Refusal> parse_lease_release(std::string_view body) {
  const auto value = read_json(body);
  return value.ok() ? read_lease_id(*value, kLeaseReleaseFields) : malformed(value.error());
}

std::variant<LeaseBody, Refusal> parse_lease_renewal(std::string_view body, int64_t max_lease_ms) {
  const auto value = read_json(body);
  if (!value.ok()) return malformed(value.error());
  auto parsed = read_lease_id(*value, kLeaseRenewalFields);
  auto* renewal = std::get_if<LeaseBody>(&parsed);
  if (renewal == nullptr) return parsed;
  const json::value* lease_ms = field(*value, "lease_ms");
  if (lease_ms == nullptr || !lease_ms->is_int64() || lease_ms->get_int64() <= 0 ||
      lease_ms->get_int64() > max_lease_ms) {
    return Refusal(
        error(Errc::kInvalidArgument, "'lease_ms' is {:.40}; must be 1 to {}",
              lease_ms == nullptr ? "missing" : json::serialize(*lease_ms), max_lease_ms),
        "lease_ms");
  }
  renewal->lease_ms = lease_ms->get_int64();
  return parsed;
}

}  // namespace millrace::coordinator
