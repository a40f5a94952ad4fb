// SPDX-License-Identifier: Apache-2.0
// Rank 0 tells the group what to do next. Between commands the other ranks wait here. Rank 0 sends
// an empty command at least every kCommandInterval, so a wait that outlasts kCommandTimeout means
// that rank 0 is gone.
#pragma once

#include <chrono>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "protocol/group_messages.pb.h"

namespace millrace::worker {

inline constexpr std::chrono::milliseconds kCommandInterval{500};
inline constexpr std::chrono::seconds kCommandTimeout{30};

// Collective over `world`: rank 0 gives the command, every rank returns it.
Result<protocol::GroupCommand> broadcast_command(comm::Communicator& world,
                                                 const protocol::GroupCommand& command,
                                                 Deadline deadline);

}  // namespace millrace::worker
