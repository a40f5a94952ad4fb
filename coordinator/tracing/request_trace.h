// SPDX-License-Identifier: Apache-2.0
// The spans of one request, from what its record says at each of its changes. Its own span lasts from
// receipt to the answer; parts of it are `tokenize`, `queue`, `prefill` (with an event for each layer,
// and what its group did as parts) and `hand-over`, until the lease ends. Nothing of a prompt or of
// an answer is in them, nor texts of errors, which may quote prompts. Times are given. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/tracing/span.h"
#include "common/tracing/trace_context.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

class RequestTrace {
 public:
  struct Call {
    tracing::TraceContext own;  // its trace, and the id of its span
    std::string parent_id;      // of the client's span; "" : none
    std::string method;
    std::string path;
    std::string operation;  // as OpenTelemetry's conventions for generative AI name it
    TimePoint received;
  };

  explicit RequestTrace(Call call) : call_(std::move(call)) {}

  const std::string& id() const { return call_.own.trace_id; }

  void tokenized(TimePoint begin, TimePoint end);
  // To be called after each change of the record. Others, made as its copies, do not count.
  void changed(const Request& request, TimePoint now);
  // The answer has been sent, or the client is gone. `status`: 0 if there was no answer.
  void answered(int status, TimePoint now);

  // What is complete and was not taken before: first all but the hand-over, once the request has ended
  // and been answered; then the hand-over.
  std::vector<tracing::Span> take();

 private:
  tracing::Span part(std::string name, TimePoint begin, TimePoint end) const;
  void begin_prefill(const Request& request);
  void end_prefill(TimePoint end, const Error* failure);
  void end(const Request& request);
  void add_stages(const Request& request);
  void hand_over(const Request& request, TimePoint now);

  const Call call_;
  std::vector<tracing::Span> spans_;
  std::optional<tracing::Span> prefill_;  // while it runs
  std::optional<TimePoint> waits_since_;  // in the queue
  std::optional<TimePoint> opened_at_;    // its pages could be pulled
  tracing::Attributes attributes_;        // of its own span
  std::string error_;                     // the name of the code with which it failed
  std::string record_id_;                 // "" until it is admitted
  bool ended_ = false;
  bool answered_ = false;
  bool handed_over_ = false;
};

}  // namespace millrace::coordinator
