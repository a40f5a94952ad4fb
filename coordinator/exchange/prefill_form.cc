// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/prefill_form.h"

#include "coordinator/api/request_json.h"
#include "coordinator/text/http_text.h"

namespace millrace::coordinator {

ParsedPrefillBody PrefillForm::parse(const RequestReader::Request& request, const Route& route) {
  const auto type = request[http::field::content_type];
  if (is_media_type({type.data(), type.size()}, "application/octet-stream")) {
    return parse_prefill_binary(request.body(), route.query, limits_);
  }
  if (is_media_type({type.data(), type.size()}, "text/plain")) {
    return parse_prefill_text(request.body(), route.query, limits_);
  }
  if (auto wrong = refuse_query(route.query)) return *std::move(wrong);
  return parse_prefill_json(request.body(), limits_);
}

awaitable<HttpReply> PrefillForm::reply(const Request& record) {
  const ResultTexts texts = co_await manifests_.write_result(record);
  co_return HttpReply{200, done_text(record, Clock::steady().now(), texts)};
}

}  // namespace millrace::coordinator
