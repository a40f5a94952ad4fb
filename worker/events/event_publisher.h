// SPDX-License-Identifier: Apache-2.0
// Where a group's KV cache events go. Owned by rank 0; the engine's thread calls it.
#pragma once

#include <vector>

#include "worker/events/kv_event.h"

namespace millrace::worker {

class EventPublisher {
 public:
  virtual ~EventPublisher() = default;
  // Publishes in this order. Never waits and never fails: what cannot be delivered is dropped.
  virtual void publish(std::vector<KvEvent> events) = 0;
  // Called once, before all others: what the group has cached from its start on. Whoever subscribes
  // before anything else is published gets it too.
  virtual void publish_start(std::vector<KvEvent> events) = 0;
};

}  // namespace millrace::worker
