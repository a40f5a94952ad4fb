// SPDX-License-Identifier: Apache-2.0
// Handles what groups say about the prompts that they run. Messages about any other prompt are
// ignored, because the request may have been given to another group or the group may have been
// taken over; a cache left by such a prompt is released. An error means that the group breaks the
// protocol.
#pragma once

#include <optional>
#include <string>

#include "coordinator/groups/group.h"
#include "coordinator/requests/request_tracker.h"
#include "coordinator/schedule/dispatcher.h"
#include "coordinator/schedule/prefill_pace.h"

namespace millrace::coordinator {

class PrefillReplies {
 public:
  PrefillReplies(RequestTracker& requests, Dispatcher& dispatcher, TurnOrder& turns,
                 PrefillPace& pace, const Clock& clock)
      : requests_(requests), dispatcher_(dispatcher), turns_(turns), pace_(pace), clock_(clock) {}

  void started(Group& group, const std::string& request_id);
  void opened(Group& group, protocol::PrefillOpened message);
  void layer_done(Group& group, const protocol::LayerDone& message);
  // done() and failed() free the group for the next request.
  Result<void> done(Group& group, protocol::PrefillDone message);
  // `made_room`: where it failed for lack of room, some has been made since.
  void failed(Group& group, const protocol::PrefillFailed& message, bool made_room = false);

 private:
  static std::optional<double> groups_own_seconds(const Request& request,
                                                  const protocol::PrefillDone& message);
  void release_unasked(Group& group, const protocol::PrefillDone& message);
  void note_failure(Group& group, Request& request, const Error& why);

  RequestTracker& requests_;
  Dispatcher& dispatcher_;
  TurnOrder& turns_;
  PrefillPace& pace_;
  const Clock& clock_;
};

}  // namespace millrace::coordinator
