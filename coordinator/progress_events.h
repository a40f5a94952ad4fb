// Turns the state of a request into server-sent events: what is new since the last call. Because it
// looks at the record and not at a queue of happenings, a slow reader costs no memory.
#pragma once

#include <memory>
#include <string>

#include "coordinator/request.h"

namespace millrace::coordinator {

class ProgressEvents {
 public:
  explicit ProgressEvents(std::shared_ptr<const Request> request) : request_(std::move(request)) {}

  // "event: layer\ndata: {...}\n\n" and so on, in the order queued, started, manifest (of a
  // streaming request), layer ..., then done or error; "" when nothing is new.
  std::string take(TimePoint now);
  // The last event is out.
  bool finished() const { return finished_; }

  static constexpr const char* kKeepAlive = ": ping\n\n";

 private:
  std::shared_ptr<const Request> request_;
  bool queued_ = false;
  bool started_ = false;
  bool opened_ = false;
  size_t layers_ = 0;
  bool finished_ = false;
};

}  // namespace millrace::coordinator
