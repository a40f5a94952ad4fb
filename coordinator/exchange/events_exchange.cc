// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/events_exchange.h"

#include "coordinator/exchange/own_request.h"

namespace millrace::coordinator {

awaitable<bool> EventsExchange::run(const Route& route, const Caller& caller, bool is_head) {
  if (const auto wrong = refuse_query(route.query)) co_return co_await writer_.send_error(*wrong);
  const auto record = own_request(shared_.scheduler, route.id, caller);
  if (!record.ok()) co_return co_await writer_.send_error(Refusal(record.error()));
  writer_.set_request_id(route.id);
  if (is_head) {
    HttpReply head{.status = 200, .body = "", .content_type = "text/event-stream"};
    co_return co_await writer_.send(std::move(head));
  }
  const EventStream::Outcome sent = co_await events_.run(*record);
  co_return sent.reusable;
}

}  // namespace millrace::coordinator
