// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/lease_exchange.h"

#include <boost/asio/this_coro.hpp>
#include <boost/json.hpp>

#include "coordinator/api/request_json.h"
#include "coordinator/exchange/own_request.h"
#include "coordinator/net/notifier.h"

namespace millrace::coordinator {

namespace json = boost::json;

std::variant<LeaseBody, Refusal> LeaseExchange::parse(const Route& route,
                                                      std::string_view body) const {
  if (auto wrong = refuse_query(route.query)) return *std::move(wrong);
  if (route.endpoint == Endpoint::kLeaseRelease) return parse_lease_release(body);
  return parse_lease_renewal(body, shared_.options.body.max_duration_ms);
}

awaitable<HttpReply> LeaseExchange::run(const Route& route, const Caller& caller,
                                        const std::string& body, const std::string& request_id) {
  const auto parsed = parse(route, body);
  if (const auto* wrong = std::get_if<Refusal>(&parsed)) co_return error_reply(*wrong, request_id);
  const auto& wanted = std::get<LeaseBody>(parsed);
  // The record, not its id: by the time a group has answered, the id may name another request.
  const auto found = own_request(shared_.scheduler, route.id, caller);
  if (!found.ok()) co_return error_reply(found.error(), request_id);
  const auto& record = *found;
  Result<void> changed;
  if (route.endpoint == Endpoint::kLeaseRenew) {
    changed = co_await renew(record, wanted);
  } else {
    changed = shared_.scheduler.release_lease(route.id, wanted.lease_id);
  }
  if (!changed.ok()) co_return error_reply(changed.error(), request_id);
  const json::object answer{{"request_id", route.id},
                            {"lease", lease_json(*record, Clock::steady().now())}};
  co_return HttpReply{200, json::serialize(answer)};
}

awaitable<Result<void>> LeaseExchange::renew(std::shared_ptr<const Request> record,
                                             const LeaseBody& body) {
  Notifier changed(co_await asio::this_coro::executor);
  const ChangeHub::Subscription subscription(shared_.changes, record->id, changed);
  const Result<void> sent = shared_.scheduler.renew_lease(record->id, body.lease_id,
                                                          std::chrono::milliseconds(body.lease_ms));
  if (!sent.ok()) co_return sent;
  const Duration patience = shared_.options.http.lease_answer;
  const Deadline deadline = Deadline::after(patience);
  while (!record->lease_answer) {
    if (!co_await changed.wait(deadline)) break;
  }
  if (!record->lease_answer) {
    co_return error(Errc::kUnavailable,
                    "group '{}' did not answer within {:.1f} s; the renewal counts when it does",
                    record->group_name, seconds(patience));
  }
  co_return *record->lease_answer;
}

}  // namespace millrace::coordinator
