#include "coordinator/exchange/events_exchange.h"

namespace millrace::coordinator {

awaitable<bool> EventsExchange::run(const Route& route, bool is_head) {
  if (const auto wrong = refuse_query(route.query)) co_return co_await writer_.send_error(*wrong);
  auto record = shared_.scheduler.find(route.id);
  if (!record) {
    const Error missing = error(Errc::kNotFound, "no request '{}'", route.id);
    co_return co_await writer_.send_error(Refusal(missing));
  }
  writer_.set_request_id(record->id);
  if (is_head) {
    HttpReply head{.status = 200, .body = "", .content_type = "text/event-stream"};
    co_return co_await writer_.send(std::move(head));
  }
  const EventStream::Outcome sent = co_await events_.run(std::move(record));
  co_return sent.reusable;
}

}  // namespace millrace::coordinator
