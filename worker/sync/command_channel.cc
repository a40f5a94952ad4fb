// SPDX-License-Identifier: Apache-2.0
#include "worker/sync/command_channel.h"

#include <string>

namespace millrace::worker {

Result<protocol::GroupCommand> broadcast_command(comm::Communicator& world,
                                                 const protocol::GroupCommand& command,
                                                 Deadline deadline) {
  std::string bytes;
  if (world.rank() == 0) bytes = command.SerializeAsString();
  int64_t size = static_cast<int64_t>(bytes.size());
  MR_RETURN_IF_ERROR(
      world.broadcast(std::as_writable_bytes(std::span(&size, 1)), /*root=*/0, deadline));
  bytes.resize(static_cast<size_t>(size));
  if (size > 0) {
    MR_RETURN_IF_ERROR(
        world.broadcast(std::as_writable_bytes(std::span(bytes)), /*root=*/0, deadline));
  }
  protocol::GroupCommand received;
  MR_CHECK(received.ParseFromString(bytes), "command of {} bytes from rank 0", size);
  return received;
}

}  // namespace millrace::worker
