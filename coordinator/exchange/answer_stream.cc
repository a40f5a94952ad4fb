// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/answer_stream.h"

#include <utility>

#include "coordinator/api/completion_json.h"
#include "coordinator/api/progress_events.h"
#include "coordinator/exchange/end_reply.h"
#include "coordinator/http/disconnect_watch.h"

namespace millrace::coordinator {

awaitable<EventStream::Outcome> AnswerStream::run(std::shared_ptr<const Request> record) {
  {
    Notifier changed(stream_.get_executor());
    const ChangeHub::Subscription subscription(shared_.changes, record->id, changed);
    const DisconnectWatch client(stream_, changed);
    if (form_.progress(*record).empty()) co_await wait_for_outcome(record, changed, client);
    if (!record->ended() && !client.gone()) {
      co_await send_signs_of_life(record, changed, client);
    }
  }
  if (!record->ended() || gone_) co_return EventStream::Outcome{};
  co_return co_await send_outcome(record);
}

awaitable<void> AnswerStream::wait_for_outcome(Record record, Notifier& changed,
                                               const DisconnectWatch& client) {
  const Deadline deadline = Deadline::after(shared_.options.http.early_outcome);
  // A client that has stopped sending may still listen: only writing to it tells.
  while (!record->ended() && !client.gone() && !client.half_closed()) {
    if (!co_await changed.wait(deadline)) break;
  }
}

awaitable<void> AnswerStream::send_signs_of_life(Record record, Notifier& changed,
                                                 const DisconnectWatch& client) {
  begun_ = true;
  gone_ = !co_await writer_.begin_events();
  bool news = true;
  while (!gone_ && !record->ended() && !client.gone()) {
    std::string sign = form_.progress(*record);
    if (sign.empty() && !news) sign = ProgressEvents::kPing;
    if (!sign.empty()) gone_ = !co_await writer_.send_events(std::move(sign));
    if (gone_ || record->ended()) break;
    news = co_await changed.wait(Deadline::after(shared_.options.http.keep_alive));
  }
}

awaitable<EventStream::Outcome> AnswerStream::send_outcome(Record record) {
  HttpReply reply = co_await end_reply(form_, *record);
  EventStream::Outcome outcome;
  if (!begun_) {
    outcome.complete = true;
    outcome.reusable = co_await writer_.send(std::move(reply));
    co_return outcome;
  }
  std::string events = std::move(reply.body);
  if (reply.status != 200) events = stream_error(std::move(events));
  outcome.complete = co_await writer_.send_events(std::move(events));
  if (outcome.complete) outcome.reusable = co_await writer_.end_events();
  co_return outcome;
}

}  // namespace millrace::coordinator
