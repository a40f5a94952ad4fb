// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/event_stream.h"

#include <utility>

#include "coordinator/api/progress_events.h"
#include "coordinator/http/disconnect_watch.h"

namespace millrace::coordinator {

awaitable<EventStream::Outcome> EventStream::run(std::shared_ptr<const Request> record,
                                                 bool tells_progress) {
  Outcome outcome;
  ProgressEvents events(record, tells_progress);
  const bool open = co_await writer_.begin_events();
  if (open) {
    Notifier changed(stream_.get_executor());
    const ChangeHub::Subscription subscription(shared_.changes, record->id, changed);
    const DisconnectWatch client(stream_, changed);
    outcome.complete = co_await send_until_end(events, record, changed, client);
  }
  if (outcome.complete) outcome.reusable = co_await writer_.end_events();
  co_return outcome;
}

awaitable<bool> EventStream::send_until_end(ProgressEvents& events, Record record,
                                            Notifier& changed, const DisconnectWatch& client) {
  bool open = true;
  bool half_closed = false;
  while (open) {
    co_await write_manifests(record, events);
    const std::string news = events.take(Clock::steady().now());
    if (!news.empty()) open = co_await writer_.send_events(news);
    if (events.finished()) co_return true;
    if (!open || client.gone()) break;
    if (record->ended()) continue;  // while the events went out
    const bool changes = co_await changed.wait(Deadline::after(shared_.options.http.keep_alive));
    // A client that has stopped sending may still listen: only writing to it tells.
    const bool ask = client.half_closed() && !std::exchange(half_closed, client.half_closed());
    if (changes && !ask) continue;
    std::string sign = events.keep_alive(Clock::steady().now());
    open = co_await writer_.send_events(std::move(sign));
  }
  co_return false;
}

// Writing one takes a while, and the other may be needed by then.
awaitable<void> EventStream::write_manifests(Record record, ProgressEvents& events) {
  while (events.wants_opened_manifest() || events.wants_manifest()) {
    const bool opened = events.wants_opened_manifest();
    if (opened) {
      std::string text = co_await manifests_.write_opened(*record);
      events.give_opened_manifest(std::move(text));
    } else {
      ResultTexts texts = co_await manifests_.write_result(*record);
      events.give_result(std::move(texts));
    }
  }
}

}  // namespace millrace::coordinator
