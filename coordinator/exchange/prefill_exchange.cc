// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/prefill_exchange.h"

#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "common/content/prefix_keys.h"
#include "common/log.h"
#include "coordinator/api/parse_completion.h"
#include "coordinator/api/request_json.h"
#include "coordinator/exchange/answer_stream.h"
#include "coordinator/exchange/end_reply.h"
#include "coordinator/exchange/event_stream.h"
#include "coordinator/exchange/prompt_text.h"
#include "coordinator/http/disconnect_watch.h"
#include "coordinator/requests/request_log.h"
#include "coordinator/text/request_id.h"

namespace millrace::coordinator {

PrefillExchange::PrefillExchange(HttpShared& shared, NetStream& stream, RequestGate& gate,
                                 ReplyWriter& writer, PromptForm& form,
                                 const RequestTracer::Answering& answering)
    : shared_(shared),
      stream_(stream),
      gate_(gate),
      writer_(writer),
      form_(form),
      answering_(answering) {}

awaitable<bool> PrefillExchange::run(RequestReader::Request& request, const Route& route) {
  if (writer_.request_id().empty()) writer_.set_request_id(make_request_id());
  const bool counts = route.endpoint != Endpoint::kForecast;  // a forecast is no request
  ParsedPrefillBody parsed = co_await parse(request, route);
  std::string().swap(request.body());
  auto* body = std::get_if<PrefillBody>(&parsed);
  if (body == nullptr) {
    const auto& wrong = std::get<Refusal>(parsed);
    if (counts) shared_.metrics.refused(wrong);
    co_return co_await refuse(wrong);
  }
  const bool names_itself = !body->request_id.empty();
  if (!names_itself) body->request_id = writer_.request_id();
  writer_.set_request_id(body->request_id);
  body->trace_id = answering_.trace_id();
  body->trace = answering_.trace();
  const bool streams = body->stream;
  const bool tells_progress = body->return_progress;
  if (const auto wrong = co_await prepare(*body)) {
    if (counts) shared_.metrics.refused(*wrong);
    co_return co_await refuse(*wrong);
  }
  if (route.endpoint == Endpoint::kForecast) co_return co_await forecast(*body);
  if (!names_itself) take_own_id(*body);
  const std::string id = body->request_id;
  if (const auto declined = check_forecast(*body)) co_return co_await refuse(*declined);
  const auto refused = shared_.scheduler.submit(std::move(*body), gate_.caller());
  gate_.release();  // the prompt is now in the queue, which has its own limit
  if (refused) co_return co_await refuse(*refused);
  auto record = shared_.scheduler.find(id);
  shared_.tracer.changed(*record);
  // Not one conditional expression: g++ 12 takes the wrong arm of ?: with co_await in both.
  if (streams) co_return co_await stream(std::move(record), tells_progress);
  const bool in_events = form_.answers_in_events() && writer_.takes_chunks();
  if (in_events) co_return co_await answer_in_events(std::move(record));
  co_return co_await answer_at_end(std::move(record));
}

awaitable<ParsedPrefillBody> PrefillExchange::parse(const RequestReader::Request& request,
                                                    const Route& route) {
  auto work = [this, &request, &route]() -> awaitable<ParsedPrefillBody> {
    co_return form_.parse(request, route);
  };
  co_return co_await asio::co_spawn(shared_.parsers, work(), asio::use_awaitable);
}

awaitable<std::optional<Refusal>> PrefillExchange::prepare(PrefillBody& body) {
  if (body.text) {
    // What is not served is refused later, so it need not be tokenized.
    const bool served =
        !shared_.scheduler.draining() && shared_.scheduler.offers().count(body.model);
    if (!served) co_return std::nullopt;
    PromptText text(shared_, stream_);
    const TimePoint begin = Clock::steady().now();
    auto wrong = co_await text.tokenize(body);
    if (body.trace) body.trace->tokenized(begin, Clock::steady().now());
    if (wrong) co_return wrong;
  }
  auto work = [this, &body]() -> awaitable<void> {
    form_.see_prompt(body.prompt_token_ids);
    if ((body.options.cache() & protocol::CACHE_READ) != 0) {
      body.prompt_sha256 = prompt_digest(body.prompt_token_ids);
      body.prefix_keys = prefix_keys(body.prompt_token_ids);
    }
    co_return;
  };
  co_await asio::co_spawn(shared_.parsers, work(), asio::use_awaitable);
  co_return std::nullopt;
}

// Gateways give all calls of a trace, and a call that they send again, the same X-Request-Id.
void PrefillExchange::take_own_id(PrefillBody& body) {
  if (!shared_.scheduler.find(body.request_id)) return;
  const std::string given = std::exchange(body.request_id, make_request_id());
  log::info("request {}: its X-Request-Id {} is an earlier request's id", body.request_id, given);
  writer_.replace_request_id(body.request_id);
}

// Its id is that of the call, so that a forecast may be asked for while a prompt of the same id runs.
awaitable<bool> PrefillExchange::forecast(PrefillBody& body) {
  body.request_id = make_request_id();
  const std::string model = body.model;
  const int64_t num_tokens = std::ssize(body.prompt_token_ids);
  const auto end = shared_.scheduler.forecast(std::move(body), gate_.caller());
  gate_.release();
  if (const auto* wrong = std::get_if<Refusal>(&end)) co_return co_await refuse(*wrong);
  // Named, because g++ 12 destroys a temporary that a coroutine takes by value twice.
  HttpReply reply{200, forecast_text(model, num_tokens, std::get<ExpectedEnd>(end))};
  co_return co_await writer_.send(std::move(reply));
}

std::optional<Refusal> PrefillExchange::check_forecast(const PrefillBody& body) const {
  const std::optional<Duration> limit = form_.decline_after();
  if (!limit) return std::nullopt;
  const auto forecast = shared_.scheduler.forecast(body, gate_.caller());
  // What would be refused is refused by submit(), which counts it.
  const auto* end = std::get_if<ExpectedEnd>(&forecast);
  if (end == nullptr || !end->is_learnt || end->all() <= *limit) return std::nullopt;
  Refusal why(error(Errc::kDeadlineExceeded,
                    "should take {:.3f} s, of which {:.3f} s in the queue; declined after {:.3f} s",
                    seconds(end->all()), seconds(end->wait), seconds(*limit)));
  shared_.metrics.refused(why);
  return why;
}

awaitable<bool> PrefillExchange::refuse(const Refusal& why) {
  log_refused(writer_.request_id(), why.error, answering_.trace_id());
  if (auto declined = form_.decline(writer_.request_id(), why)) {
    co_return co_await writer_.send(*std::move(declined));
  }
  co_return co_await writer_.send_error(why);
}

awaitable<bool> PrefillExchange::answer_at_end(Record record) {
  {
    Notifier changed(stream_.get_executor());
    const ChangeHub::Subscription subscription(shared_.changes, record->id, changed);
    const DisconnectWatch client(stream_, changed);
    co_await wait_for_end(record, changed, client);
  }
  if (record->ended()) co_return co_await answer_result(record);
  shared_.scheduler.leave(*record, "the client disconnected");
  co_return false;
}

awaitable<void> PrefillExchange::wait_for_end(Record record, Notifier& changed,
                                              const DisconnectWatch& client) {
  // Every admitted request ends by its own deadline; the deadlines here only bound a wait.
  bool half_closed = false;
  while (!record->ended() && !client.gone()) {
    const bool news = co_await changed.wait(Deadline::after(
        half_closed ? shared_.options.http.keep_alive : Duration(std::chrono::minutes(1))));
    if (!client.half_closed() || (half_closed && news)) continue;
    half_closed = true;
    const bool listens = co_await writer_.client_listens();
    if (!listens) co_return;
  }
}

awaitable<bool> PrefillExchange::answer_result(Record record) {
  HttpReply reply = co_await end_reply(form_, *record);
  co_return co_await writer_.send(std::move(reply));
}

awaitable<bool> PrefillExchange::answer_in_events(Record record) {
  AnswerStream answer(shared_, stream_, writer_, form_);
  const EventStream::Outcome sent = co_await answer.run(record);
  if (!sent.complete) shared_.scheduler.leave(*record, "the client disconnected");
  co_return sent.reusable;
}

awaitable<bool> PrefillExchange::stream(Record record, bool tells_progress) {
  EventStream events(shared_, stream_, writer_);
  const EventStream::Outcome sent = co_await events.run(record, tells_progress);
  if (!sent.complete) shared_.scheduler.leave(*record, "the client disconnected");
  co_return sent.reusable;
}

}  // namespace millrace::coordinator
