// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/status_exchange.h"

#include "coordinator/api/request_json.h"
#include "coordinator/exchange/own_request.h"

namespace millrace::coordinator {

awaitable<HttpReply> StatusExchange::run(const Route& route, const Caller& caller,
                                         const std::string& request_id) {
  const auto found = own_request(shared_.scheduler, route.id, caller);
  if (!found.ok()) co_return error_reply(found.error(), request_id);
  const auto& record = *found;
  if (route.endpoint == Endpoint::kCancel) {
    const Result<void> cancelled = shared_.scheduler.cancel(route.id, "cancelled by DELETE");
    if (!cancelled.ok()) co_return error_reply(cancelled.error(), request_id);
  }
  const ResultTexts texts = co_await manifests_.write_result(*record);
  co_return HttpReply{200, status_text(*record, Clock::steady().now(), texts)};
}

}  // namespace millrace::coordinator
