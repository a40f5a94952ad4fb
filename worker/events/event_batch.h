// SPDX-License-Identifier: Apache-2.0
// The payload of a message of KV cache events: a MessagePack array of time, events and
// data-parallel rank. Each event is a map with vLLM's names (docs/kv-events.md says of which
// version).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "worker/events/kv_event.h"

namespace millrace::worker {

// `unix_time_s`: seconds since 1970, with fractions.
std::vector<std::byte> encode_event_batch(double unix_time_s, std::span<const KvEvent> events);

}  // namespace millrace::worker
