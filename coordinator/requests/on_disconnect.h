// SPDX-License-Identifier: Apache-2.0
// What becomes of a prefill when the last client that waits for it leaves, or its deadline passes.
#pragma once

namespace millrace::coordinator {

enum class OnDisconnect {
  kCancel,  // it ends
  kFinish,  // it goes on, and its result is held for a while for whoever sends the same prompt
  // If it is long, it stops at a layer's end and goes on when the same prompt comes again; it ends
  // after a while, or when another prompt needs the room.
  kSuspend,
};

}  // namespace millrace::coordinator
