// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/reply_checks.h"

#include "common/errc_wire.h"
#include "coordinator/text/cut_text.h"
#include "coordinator/text/limits.h"

namespace millrace::coordinator {

namespace {

// Phases and stages of a prefill; there are twelve.
constexpr int kMaxTimes = 64;

}  // namespace

Result<Duration> checked_lease(const Group& group, const std::string& request_id,
                               uint64_t lease_ms) {
  if (lease_ms <= static_cast<uint64_t>(kMaxDurationMs)) {
    return Duration(std::chrono::milliseconds(lease_ms));
  }
  return error(Errc::kInvalidArgument, "group '{}' gives request '{}' a lease of {} ms, limit {}",
               group.description.group_name(), request_id, lease_ms, kMaxDurationMs);
}

Result<void> check_times(const Group& group, const protocol::PrefillDone& message) {
  if (message.phases_size() <= kMaxTimes && message.stages_size() <= kMaxTimes) return {};
  return error(Errc::kInvalidArgument, "group '{}' sent {} phases and {} stages, limit {}",
               group.description.group_name(), message.phases_size(), message.stages_size(),
               kMaxTimes);
}

Error checked_error(const protocol::ErrorInfo& info) {
  return Error(errc_from_wire(info.code()), cut_text(info.message()));
}

}  // namespace millrace::coordinator
