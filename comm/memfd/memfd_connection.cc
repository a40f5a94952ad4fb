// SPDX-License-Identifier: Apache-2.0
#include "comm/memfd/memfd_connection.h"

#include <unistd.h>

#include <utility>

#include "comm/memfd/packet_socket.h"

namespace millrace::comm {

Result<std::unique_ptr<MemfdConnection>> MemfdConnection::open(const std::string& name,
                                                               Deadline deadline) {
  MR_ASSIGN_OR_RETURN(auto socket, PacketSocket::connect(name, deadline));
  MR_ASSIGN_OR_RETURN(const uid_t user, socket.peer_user());
  if (user != ::geteuid()) {
    return error(Errc::kUnsupported, "the rank runs as user {}, this process as {}", user,
                 ::geteuid());
  }
  return std::unique_ptr<MemfdConnection>(new MemfdConnection(std::move(socket)));
}

Result<std::string> MemfdConnection::call(std::string_view request, Deadline deadline) {
  auto answer = exchange(request, deadline);
  // An interrupt looks like the end of the connection.
  if (interrupted_.load()) return Error(Errc::kCancelled, "the call was interrupted");
  return answer;
}

Result<std::string> MemfdConnection::exchange(std::string_view request, Deadline deadline) {
  const Stopwatch watch;
  MR_RETURN_IF_ERROR(socket_.send(kMemfdAsk + std::string(request)));
  while (true) {
    if (!socket_.wait(deadline)) {
      return error(Errc::kDeadlineExceeded, "no answer within {:.3f} s", watch.elapsed_s());
    }
    MR_ASSIGN_OR_RETURN(auto packet, socket_.receive());
    if (!packet) continue;
    for (auto& descriptor : packet->descriptors) descriptors_.push_back(std::move(descriptor));
    return std::move(packet->text);
  }
}

void MemfdConnection::done() {
  (void)socket_.send(kMemfdDone);  // a server that misses it sees the connection's end
}

void MemfdConnection::interrupt() {
  interrupted_.store(true);
  socket_.shut_down();
}

}  // namespace millrace::comm
