// SPDX-License-Identifier: Apache-2.0
// Reads the server-sent events of a streamed prefill from a file descriptor, usually a pipe, into a
// HandoverFeed, on a thread of its own.
#pragma once

#include <thread>

#include "kvclient/handover/handover_feed.h"

namespace millrace::kvclient {

class EventReader {
 public:
  // Reads until the request or the input has ended; then all that wait on `feed` are told. Both
  // arguments outlive the reader.
  static Result<std::unique_ptr<EventReader>> start(int input, HandoverFeed& feed);
  // Stops reading, wherever it is in the stream.
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
