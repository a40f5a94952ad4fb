// SPDX-License-Identifier: Apache-2.0
// In which order waiting requests get their turns.
#pragma once

namespace millrace::coordinator {

enum class QueueOrder {
  kFair,     // as TurnOrder says
  kArrival,  // as they came
};

}  // namespace millrace::coordinator
