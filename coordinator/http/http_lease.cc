// POST /v1/prefill/{id}/lease:renew and lease:release.
#include <boost/json.hpp>

#include "coordinator/api/request_json.h"
#include "coordinator/http/http_session.h"
#include "coordinator/text/query_string.h"

namespace millrace::coordinator {

awaitable<HttpReply> HttpSession::lease_call(const Request& request, const Route& route) {
  const bool renews = route.endpoint == Endpoint::kLeaseRenew;
  if (const auto wrong = refuse_query(route.query)) co_return refusal(*wrong);
  const auto parsed =
      renews ? parse_lease_renewal(request.body(), shared_.options.body.max_duration_ms)
             : parse_lease_release(request.body());
  if (const auto* wrong = std::get_if<Refusal>(&parsed)) co_return refusal(*wrong);
  const auto& body = std::get<LeaseBody>(parsed);
  // The record, not its id: by the time a group has answered, the id may name another request.
  const auto record = shared_.scheduler.find(route.id);
  if (!record) co_return refusal(error(Errc::kNotFound, "no request '{}'", route.id));
  Result<void> done;
  if (renews) {
    done = co_await renew_lease(record, body);
  } else {
    done = shared_.scheduler.release_lease(route.id, body.lease_id);
  }
  if (!done.ok()) co_return refusal(done.error());
  namespace json = boost::json;
  const json::object answer{{"request_id", route.id},
                            {"lease", lease_json(*record, Clock::steady().now())}};
  co_return HttpReply{200, json::serialize(answer)};
}

awaitable<Result<void>> HttpSession::renew_lease(std::shared_ptr<const coordinator::Request> record,
                                                 const LeaseBody& body) {
  Notifier changed(stream_.get_executor());
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
    co_return error(Errc::kDeadlineExceeded, "group '{}' did not answer in {:.1f} s",
                    record->group_name, seconds(patience));
  }
  co_return *record->lease_answer;
}

}  // namespace millrace::coordinator
