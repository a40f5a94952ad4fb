// Bounds that clients check before they send.
#pragma once

#include <cstdint>

namespace millrace::coordinator {

// Of a deadline and of a lease.
inline constexpr int64_t kMaxDurationMs = 24 * 3600 * 1000;

// Of a priority, either way.
inline constexpr int64_t kMaxPriority = 1000;

// Of a prompt that is text: what a tokenizer takes (tokenizer/text_messages.h).
inline constexpr int64_t kMaxTextBytes = 16ll << 20;

}  // namespace millrace::coordinator
