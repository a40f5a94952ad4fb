// SPDX-License-Identifier: Apache-2.0
// GET /v1/prefill/{id}/events: all events of a prefill so far and from then on, for clients that
// did not post it. A client that leaves changes nothing.
#pragma once

#include "coordinator/exchange/event_stream.h"
#include "coordinator/http/route.h"

namespace millrace::coordinator {

class EventsExchange {
 public:
  // All must outlive it. `stream`: to notice that the client leaves.
  EventsExchange(HttpShared& shared, NetStream& stream, ReplyWriter& writer)
      : shared_(shared), writer_(writer), events_(shared, stream, writer) {}

  // True when the connection can take another request. `is_head`: sends only what the answer to a
  // GET would begin with.
  awaitable<bool> run(const Route& route, const Caller& caller, bool is_head);

 private:
  HttpShared& shared_;
  ReplyWriter& writer_;
  EventStream events_;
};

}  // namespace millrace::coordinator
