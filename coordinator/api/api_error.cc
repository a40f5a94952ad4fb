// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/api_error.h"

#include <boost/json.hpp>

#include "common/text/utf8.h"
#include "protocol/errc.h"

namespace millrace::coordinator {

namespace json = boost::json;

int ApiError::http_status() const {
  return status != 0 ? status : protocol::http_status(refusal.error.code);
}

int ApiError::retry_after_s() const {
  const Errc code = refusal.error.code;
  if (!protocol::retriable(code)) return 0;
  if (refusal.retry_after_s > 0) return refusal.retry_after_s;
  // A full queue moves within seconds; a group takes longer to come back.
  return code == Errc::kExhausted ? 1 : 5;
}

std::string ApiError::to_json(std::string_view request_id) const {
  const Error& error = refusal.error;
  const std::string& field = refusal.field;
  json::object body;
  body["message"] = as_utf8(error.message);
  body["type"] = std::string(errc_name(error.code));
  body["code"] = http_status();
  body["param"] = field.empty() ? json::value(nullptr) : json::value(as_utf8(field));
  body["retriable"] = protocol::retriable(error.code);
  json::object whole{{"error", std::move(body)}};
  if (!request_id.empty()) whole["request_id"] = json::string(request_id.data(), request_id.size());
  return json::serialize(whole);
}

}  // namespace millrace::coordinator
