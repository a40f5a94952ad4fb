// SPDX-License-Identifier: Apache-2.0
// How far the host may run ahead of a device.
#pragma once

#include <cstdint>

namespace millrace::engine {

// Layer l + 1 is enqueued before the host has read what layer l left; layer l + 2 is not. So
// whatever the device copies to the host for each layer has two places, used in turn.
inline constexpr int32_t kLayersInFlight = 2;

}  // namespace millrace::engine
