// Reads the server-sent events of a streamed prefill from a file descriptor, a pipe as a rule, into
// a HandoverFeed, on a thread of its own.
#pragma once

#include <thread>

#include "kvclient/handover/handover_feed.h"

namespace millrace::kvclient {

class EventReader {
 public:
  // Until the request has ended or the input does; then all that wait on `feed` know. Both outlive
  // the reader.
  static Result<std::unique_ptr<EventReader>> start(int input, HandoverFeed& feed);
  // Stops reading, wherever it is.
  ~EventReader();

  EventReader(const EventReader&) = delete;
  EventReader& operator=(const EventReader&) = delete;

 private:
  EventReader(int input, int stop, HandoverFeed& feed)
      : input_(input), stop_(stop), feed_(feed), thread_([this] { run(); }) {}

  void run();
  Result<void> read();

  int input_;
  int stop_;  // an eventfd: readable once the reader is to stop
  HandoverFeed& feed_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace millrace::kvclient
