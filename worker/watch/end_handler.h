// SPDX-License-Identifier: Apache-2.0
// Called by a rank that can neither go on nor end in good order: memory that a GPU or a peer still
// uses cannot be freed, and waiting for it has no deadline. Only a main may end a process, so a
// main supplies the handler (worker/cli/rank_end.h), which ends the process. If the handler returns
// all the same, as in a test, the caller fails with the error.
#pragma once

#include <functional>

#include "common/result.h"

namespace millrace::worker {

// Called on any thread.
using EndHandler = std::function<void(const Error& why)>;

}  // namespace millrace::worker
