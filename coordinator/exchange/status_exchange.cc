#include "coordinator/exchange/status_exchange.h"

#include "coordinator/api/request_json.h"

namespace millrace::coordinator {

awaitable<HttpReply> StatusExchange::run(const Route& route, const std::string& request_id) {
  const auto record = shared_.scheduler.find(route.id);
  if (!record) {
    co_return error_reply(error(Errc::kNotFound, "no request '{}'", route.id), request_id);
  }
  if (route.endpoint == Endpoint::kCancel) {
    const Result<void> cancelled = shared_.scheduler.cancel(route.id, "cancelled by DELETE");
    if (!cancelled.ok()) co_return error_reply(cancelled.error(), request_id);
  }
  const std::string manifest = co_await manifests_.write_result(*record);
  co_return HttpReply{200, status_text(*record, Clock::steady().now(), manifest)};
}

}  // namespace millrace::coordinator
