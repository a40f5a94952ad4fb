// SPDX-License-Identifier: Apache-2.0
// Turns the state of a request into server-sent events: whatever is new since the last call. It
// reads the record instead of a queue of events, so a slow reader costs no memory.
#pragma once

#include <memory>
#include <string>

#include "coordinator/api/request_json.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

class ProgressEvents {
 public:
  // `tells_progress`: what keeps a silent stream alive is an event, and not a comment.
  explicit ProgressEvents(std::shared_ptr<const Request> request, bool tells_progress = false)
      : request_(std::move(request)), tells_progress_(tells_progress) {}

  // "event: layer\ndata: {...}\n\n" and so on, in the order queued, started, manifest (of a
  // streaming request), layer ..., then done or error; "" when nothing is new.
  std::string take(TimePoint now);
  // Texts that the next take() needs (request_json.h); give them before calling it.
  bool wants_opened_manifest() const {
    return request_->opened && !opened_ && opened_text_.empty();
  }
  bool wants_manifest() const { return request_->result && !finished_ && texts_.manifest.empty(); }
  void give_opened_manifest(std::string text) { opened_text_ = std::move(text); }
  void give_result(ResultTexts texts) { texts_ = std::move(texts); }
  // Whether take() has returned the last event.
  bool finished() const { return finished_; }

  // For a stream in which nothing else is sent.
  std::string keep_alive(TimePoint now) const;

  static constexpr const char* kPing = ": ping\n\n";

 private:
  std::shared_ptr<const Request> request_;
  const bool tells_progress_;
  bool queued_ = false;
  bool started_ = false;
  bool opened_ = false;
  std::string opened_text_;
  ResultTexts texts_;
  size_t layers_ = 0;
  bool finished_ = false;
};

}  // namespace millrace::coordinator
