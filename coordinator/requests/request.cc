// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

std::string_view request_state_name(RequestState state) {
  switch (state) {
    case RequestState::kQueued:
      return "queued";
    case RequestState::kRunning:
      return "running";
    case RequestState::kDone:
      return "done";
    case RequestState::kFailed:
      return "failed";
  }
  return "?";
}

std::string_view lease_state_name(LeaseState state) {
  switch (state) {
    case LeaseState::kNone:
      return "none";
    case LeaseState::kActive:
      return "active";
    case LeaseState::kReleased:
      return "released";
    case LeaseState::kExpired:
      return "expired";
    case LeaseState::kLost:
      return "lost";
  }
  return "?";
}

// Groups from before `in_lane` existed sent manifests of one context-parallel rank.
bool ran_in_lane(const protocol::PrefillDone& done) {
  return done.in_lane() || done.manifest().cp() <= 1;
}

}  // namespace millrace::coordinator
