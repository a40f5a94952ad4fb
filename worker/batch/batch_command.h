// SPDX-License-Identifier: Apache-2.0
// A prompt of a batch job on its way from rank 0 to the others.
#pragma once

#include "protocol/group_messages.pb.h"
#include "worker/batch/batch_prompt.h"

namespace millrace::worker {

// Without the targets of probes, which only rank 0 needs.
protocol::GroupCommand to_command(const BatchPrompt& prompt);
BatchPrompt from_command(const protocol::RunPrompt& run);

}  // namespace millrace::worker
