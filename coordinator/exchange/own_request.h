// SPDX-License-Identifier: Apache-2.0
// The record of a request if it belongs to the caller; otherwise the same error as for an unknown
// id. Pure.
#pragma once

#include <memory>
#include <string>

#include "coordinator/access/caller.h"
#include "coordinator/schedule/scheduler.h"

namespace millrace::coordinator {

inline Result<std::shared_ptr<const Request>> own_request(const Scheduler& scheduler,
                                                          const std::string& id,
                                                          const Caller& caller) {
  auto record = scheduler.find(id);
  if (!record || !caller.may_touch(record->owner)) {
    return error(Errc::kNotFound, "no request '{}'", id);
  }
  return record;
}

}  // namespace millrace::coordinator
