// SPDX-License-Identifier: Apache-2.0
// All events of one prefill, from the first on, as a stream to one client. Any number of clients
// may each have a stream.
#pragma once

#include <memory>

#include "common/net/net_stream.h"
#include "coordinator/exchange/manifest_writer.h"
#include "coordinator/http/reply_writer.h"
#include "coordinator/net/notifier.h"

namespace millrace::coordinator {

class DisconnectWatch;
class ProgressEvents;

class EventStream {
 public:
  // All must outlive it. `stream`: to notice that the client leaves.
  EventStream(HttpShared& shared, NetStream& stream, ReplyWriter& writer)
      : shared_(shared), stream_(stream), writer_(writer), manifests_(shared) {}

  struct Outcome {
    bool complete = false;  // the last event went out
    bool reusable = false;  // the connection can take another request
  };
  // `tells_progress` as in ProgressEvents.
  awaitable<Outcome> run(std::shared_ptr<const Request> record, bool tells_progress = false);

 private:
  using Record = std::shared_ptr<const Request>;

  // True when the last event went out.
  awaitable<bool> send_until_end(ProgressEvents& events, Record record, Notifier& changed,
                                 const DisconnectWatch& client);
  awaitable<void> write_manifests(Record record, ProgressEvents& events);

  HttpShared& shared_;
  NetStream& stream_;
  ReplyWriter& writer_;
  ManifestWriter manifests_;
};

}  // namespace millrace::coordinator
