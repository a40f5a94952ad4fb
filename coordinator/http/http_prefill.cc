// POST /v1/prefill.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/json.hpp>

#include "coordinator/api/progress_events.h"
#include "coordinator/api/request_json.h"
#include "coordinator/http/disconnect_watch.h"
#include "coordinator/http/http_session.h"
#include "coordinator/schedule/request_log.h"
#include "coordinator/text/media_type.h"
#include "coordinator/text/query_string.h"
#include "coordinator/text/request_id.h"
#include "protocol/sse_parser.h"

namespace millrace::coordinator {

namespace {

constexpr const char* kEventStream = "text/event-stream";
constexpr std::string_view kStillHere = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

awaitable<HttpReply> HttpSession::final_reply(std::shared_ptr<const coordinator::Request> record) {
  if (record->failure) {
    ApiError why(*record->failure);
    why.retry_after = record->retry_after_s;
    co_return error_reply(why, record->id);
  }
  const std::string manifest = co_await write_manifest(*record);
  co_return HttpReply{200, done_text(*record, Clock::steady().now(), manifest)};
}

awaitable<ParsedPrefillBody> HttpSession::parse(const Request& request, const Route& route) {
  const PrefillBodyLimits& limits = shared_.options.body;
  const auto type = request[http::field::content_type];
  const bool binary = is_media_type({type.data(), type.size()}, "application/octet-stream");
  if (!binary) {
    if (auto wrong = refuse_query(route.query)) co_return *std::move(wrong);
  }
  auto work = [&request, &route, &limits, binary]() -> awaitable<ParsedPrefillBody> {
    co_return binary ? parse_prefill_binary(request.body(), route.query, limits)
                     : parse_prefill_json(request.body(), limits);
  };
  co_return co_await asio::co_spawn(shared_.parsers, work(), asio::use_awaitable);
}

awaitable<bool> HttpSession::prefill(Request& request, const Route& route) {
  if (request_id_.empty()) request_id_ = make_request_id();
  ParsedPrefillBody parsed = co_await parse(request, route);
  std::string().swap(request.body());
  auto* body = std::get_if<PrefillBody>(&parsed);
  if (body == nullptr) {
    const auto& wrong = std::get<ApiError>(parsed);
    shared_.probes.refused(wrong.error);
    co_return co_await refuse_prefill(request, wrong);
  }
  if (body->request_id.empty()) body->request_id = request_id_;
  const std::string id = request_id_ = body->request_id;
  const bool stream = body->stream;
  const auto refused = shared_.scheduler.submit(std::move(*body));
  body_share_.give_back();  // the prompt is in the queue, which has a limit of its own
  if (refused) co_return co_await refuse_prefill(request, *refused);
  auto record = shared_.scheduler.find(id);
  // Not one conditional expression: g++ 12 takes the wrong arm of ?: with co_await in both.
  if (stream) co_return co_await stream_prefill(request, std::move(record), Leaving::kCancels);
  co_return co_await wait_prefill(request, std::move(record));
}

awaitable<bool> HttpSession::refuse_prefill(const Request& request, const ApiError& why) {
  log_refused(request_id_, why.error);
  co_return co_await send(request, refusal(why));
}

awaitable<bool> HttpSession::wait_prefill(const Request& request,
                                          std::shared_ptr<const coordinator::Request> record) {
  Notifier changed(stream_.get_executor());
  const ChangeHub::Subscription subscription(shared_.changes, record->id, changed);
  const DisconnectWatch client(stream_.socket(), changed);
  // Every admitted request ends by its own deadline, so the ones here only bound a wait.
  bool half_closed = false;
  while (!record->ended() && !client.gone()) {
    const bool news = co_await changed.wait(Deadline::after(
        half_closed ? shared_.options.http.keep_alive : Duration(std::chrono::minutes(1))));
    if (!client.half_closed() || (half_closed && news)) continue;
    half_closed = true;
    const bool listens = co_await see_who_listens(request);
    if (!listens) break;
  }
  if (!record->ended()) {
    (void)shared_.scheduler.cancel(record->id, "the client disconnected");
    co_return false;
  }
  HttpReply reply = co_await final_reply(record);
  co_return co_await send(request, std::move(reply));
}

// A client that sends no more may still listen, or it has left: only what is sent to it tells, by
// the answer of its system. HTTP/1.1 has something to say that changes nothing; where a client does
// not know it, who listens is not asked.
awaitable<bool> HttpSession::see_who_listens(const Request& request) {
  if (request.version() < 11) co_return true;
  stream_.expires_after(shared_.options.http.progress);
  const auto [ec, bytes] = co_await asio::async_write(stream_, asio::buffer(kStillHere), kAwait);
  co_return !ec;
}

// GET /v1/prefill/{id}/events: all events of a request so far and from then on, for any number of
// clients that did not post it.
awaitable<bool> HttpSession::follow_prefill(const Request& request, const Route& route) {
  auto record = shared_.scheduler.find(route.id);
  std::optional<HttpReply> instead;
  if (const auto wrong = refuse_query(route.query)) {
    instead = refusal(*wrong);
  } else if (!record) {
    instead = refusal(error(Errc::kNotFound, "no request '{}'", route.id));
  } else if (request.method() == http::verb::head) {
    instead = HttpReply{200, "", kEventStream};
  }
  if (instead) co_return co_await send(request, *std::move(instead));
  co_return co_await stream_prefill(request, std::move(record), Leaving::kChangesNothing);
}

awaitable<bool> HttpSession::stream_prefill(const Request& request,
                                            std::shared_ptr<const coordinator::Request> record,
                                            Leaving leaving) {
  shared_.probes.http_answered(200);
  http::response<http::empty_body> head(http::status::ok, request.version());
  head.set(http::field::content_type, kEventStream);
  head.set(http::field::cache_control, "no-cache");
  head.set("X-Request-Id", record->id);
  head.keep_alive(request.keep_alive());
  head.chunked(true);
  http::response_serializer<http::empty_body> serializer(head);
  stream_.expires_after(shared_.options.http.progress);
  const auto [head_ec, head_bytes] = co_await http::async_write_header(stream_, serializer, kAwait);
  bool open = !head_ec;

  Notifier changed(stream_.get_executor());
  const ChangeHub::Subscription subscription(shared_.changes, record->id, changed);
  const DisconnectWatch client(stream_.socket(), changed);
  ProgressEvents events(record);
  bool half_closed = false;
  while (open) {
    // Each takes a while, in which the other may be there.
    while (events.wants_opened_manifest() || events.wants_manifest()) {
      const bool opened = events.wants_opened_manifest();
      std::string text;
      if (opened) {
        text = co_await write_manifest(record->opened, /*is_done=*/false);
        events.give_opened_manifest(std::move(text));
      } else {
        text = co_await write_manifest(*record);
        events.give_manifest(std::move(text));
      }
    }
    const std::string news = events.take(Clock::steady().now());
    if (!news.empty()) open = co_await send_chunk(news);
    if (!open || client.gone() || events.finished()) break;
    if (record->ended()) continue;  // while the chunk went out
    const bool changes = co_await changed.wait(Deadline::after(shared_.options.http.keep_alive));
    // A client that sends no more may still listen; a word to it tells.
    const bool ask = client.half_closed() && !std::exchange(half_closed, client.half_closed());
    if (!changes || ask) open = co_await send_chunk(ProgressEvents::kKeepAlive);
  }
  if (!events.finished()) {
    if (leaving == Leaving::kCancels) {
      (void)shared_.scheduler.cancel(record->id, "the client disconnected");
    }
    co_return false;
  }
  stream_.expires_after(shared_.options.http.progress);
  const auto [last_ec, last_bytes] =
      co_await asio::async_write(stream_, http::make_chunk_last(), kAwait);
  co_return !last_ec && head.keep_alive();
}

awaitable<bool> HttpSession::send_chunk(std::string text) {
  if (const auto no_room = hold_reply(text.size())) {
    text = protocol::to_text({"error", no_room->to_json(request_id_)});
  }
  stream_.expires_after(shared_.options.http.progress);
  const auto [ec, bytes] =
      co_await asio::async_write(stream_, http::make_chunk(asio::buffer(text)), kAwait);
  reply_share_.give_back();
  co_return !ec;
}

}  // namespace millrace::coordinator
