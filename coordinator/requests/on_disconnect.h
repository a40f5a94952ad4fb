// SPDX-License-Identifier: Apache-2.0
// What becomes of a prefill when the last client that waits for it leaves, or its deadline passes.
#pragma once

namespace millrace::coordinator {

enum class OnDisconnect {
  kCancel,  // it ends
  kFinish,  // it goes on, and its result is held for a while for whoever sends the same prompt
};

}  // namespace millrace::coordinator
