// SPDX-License-Identifier: Apache-2.0
// Prints the HTTP interface as the code has it, as JSON: routes, fields of requests, types of
// errors, fields of the manifest.
#include <google/protobuf/descriptor.h>

#include <boost/json.hpp>
#include <iostream>

#include "common/errc_wire.h"
#include "coordinator/api/completion_fields.h"
#include "coordinator/api/lease_body.h"
#include "coordinator/api/prefill_fields.h"
#include "coordinator/http/route.h"
#include "protocol/errc.h"
#include "protocol/manifest.pb.h"

namespace millrace::coordinator {
namespace {

namespace json = boost::json;

json::array routes() {
  json::array out;
  for (const RouteEntry& entry : all_routes()) {
    std::string path(entry.before_id);
    if (entry.id != PathId::kNone) path += "{id}" + std::string(entry.after_id);
    out.push_back({{"method", std::string(entry.method)}, {"path", path}});
  }
  return out;
}

const char* json_type(PrefillFields::Kind kind) {
  switch (kind) {
    case PrefillFields::Kind::kString:
    case PrefillFields::Kind::kText:
      return "string";
    case PrefillFields::Kind::kInt:
      return "integer";
    case PrefillFields::Kind::kBool:
      return "boolean";
    case PrefillFields::Kind::kTokens:
      return "array";
    case PrefillFields::Kind::kNumber:
      return "number";
  }
  return "?";
}

json::object prefill_fields() {
  json::object out;
  for (const auto& field : PrefillFields::fields()) out[field.name] = json_type(field.kind);
  return out;
}

// The JSON type of a field that may have several values, or its types; else its only value.
json::value type_or_value(const CompletionField& field) {
  switch (field.role) {
    case CompletionRole::kPrefill:
      return prefill_fields().at(field.name);
    case CompletionRole::kPrompt:
      return json::array{"array", "string"};
    case CompletionRole::kMessages:
    case CompletionRole::kTokens:
      return "array";
    case CompletionRole::kForTemplate:
      return "any";
    case CompletionRole::kSpecialTokens:
    case CompletionRole::kTokensAsIds:
    case CompletionRole::kReturnTokens:
    case CompletionRole::kProgress:
    case CompletionRole::kStream:
    case CompletionRole::kIncludeUsage:
    case CompletionRole::kWantsLogprobs:
      return "boolean";
    case CompletionRole::kLogprobs:
    case CompletionRole::kTopLogprobs:
    case CompletionRole::kDeclineAfter:
      return "integer";
    case CompletionRole::kStreamOptions:
    case CompletionRole::kMillrace:
    case CompletionRole::kSampling:
      return "object";
    case CompletionRole::kOutputMode:
      return "tokens";
    case CompletionRole::kMustBeOne:
      return 1;
    case CompletionRole::kMustBeFalse:
      return false;
    case CompletionRole::kMustBeNull:
    case CompletionRole::kNotTaken:
      return nullptr;
  }
  return "?";
}

json::object fields_by_name(std::span<const CompletionField> fields) {
  json::object out;
  for (const auto& field : fields) out[field.name] = type_or_value(field);
  return out;
}

json::array names(std::span<const std::string_view> fields) {
  json::array out;
  for (const std::string_view field : fields) out.push_back(json::value(field));
  return out;
}

json::object errors() {
  json::object out;
  for (int code = errc_to_wire(Errc::kInvalidArgument); code <= errc_to_wire(Errc::kDenied);
       ++code) {
    out[errc_name(static_cast<Errc>(code))] = protocol::http_status(static_cast<Errc>(code));
  }
  return out;
}

// By name; null for a scalar.
json::object fields_of(const google::protobuf::Descriptor& message) {
  json::object out;
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    out[field.name()] = field.message_type() == nullptr
                            ? json::value(nullptr)
                            : json::value(fields_of(*field.message_type()));
  }
  return out;
}

}  // namespace
}  // namespace millrace::coordinator

int main() {
  using namespace millrace::coordinator;  // NOLINT
  const json::object interface {
    {"routes", routes()}, {"prefill_fields", prefill_fields()},
        {"completion_fields", fields_by_name(kCompletionFields)},
        {"chat_fields", fields_by_name(kChatFields)},
        {"generate_fields", fields_by_name(kGenerateFields)},
        {"sampling_fields", fields_by_name(kSamplingFields)},
        {"millrace_fields", fields_by_name(kMillraceFields)},
        {"renewal_fields", names(kLeaseRenewalFields)},
        {"release_fields", names(kLeaseReleaseFields)}, {"errors", errors()}, {
      "manifest", fields_of(*millrace::protocol::Manifest::descriptor())
    }
  };
  std::cout << json::serialize(interface) << "\n";
}
