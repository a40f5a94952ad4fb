// SPDX-License-Identifier: Apache-2.0
// A completion that is answered with a stream. For a while it waits for the outcome, which is then
// sent as a whole: an error has its own status. If there is none by then, or if progress is wanted,
// the stream begins, and something is sent all the time, until the outcome follows as its last
// events.
#pragma once

#include <memory>
#include <string>

#include "common/net/net_stream.h"
#include "coordinator/exchange/event_stream.h"
#include "coordinator/exchange/prompt_form.h"
#include "coordinator/http/reply_writer.h"
#include "coordinator/net/notifier.h"

namespace millrace::coordinator {

class DisconnectWatch;

class AnswerStream {
 public:
  // All must outlive it. `stream`: to notice that the client leaves.
  AnswerStream(HttpShared& shared, NetStream& stream, ReplyWriter& writer, PromptForm& form)
      : shared_(shared), stream_(stream), writer_(writer), form_(form) {}

  awaitable<EventStream::Outcome> run(std::shared_ptr<const Request> record);

 private:
  using Record = std::shared_ptr<const Request>;

  // These end when the request has ended or the client has left.
  awaitable<void> wait_for_outcome(Record record, Notifier& changed, const DisconnectWatch& client);
  awaitable<void> send_signs_of_life(Record record, Notifier& changed,
                                     const DisconnectWatch& client);
  awaitable<EventStream::Outcome> send_outcome(Record record);

  HttpShared& shared_;
  NetStream& stream_;
  ReplyWriter& writer_;
  PromptForm& form_;
  bool begun_ = false;
  bool gone_ = false;  // the client, as writing to it has told
};

}  // namespace millrace::coordinator
