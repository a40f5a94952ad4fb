// SPDX-License-Identifier: Apache-2.0
// Limits that clients check before they send.
#pragma once

#include <cstdint>

namespace millrace::coordinator {

// For a deadline and for a lease.
inline constexpr int64_t kMaxDurationMs = 24 * 3600 * 1000;

// For a priority, positive or negative.
inline constexpr int64_t kMaxPriority = 1000;

// For a text prompt: what a tokenizer takes (tokenizer/text_messages.h).
inline constexpr int64_t kMaxTextBytes = 16ll << 20;

}  // namespace millrace::coordinator
