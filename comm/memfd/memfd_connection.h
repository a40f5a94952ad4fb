// SPDX-License-Identifier: Apache-2.0
// The client end of a MemfdServer. One thread at a time, except interrupt(). After an error it
// cannot be used any more.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/api/transport.h"
#include "comm/memfd/packet_socket.h"

namespace millrace::comm {

class MemfdConnection final : public Interruptible {
 public:
  // kPeerLost: no server of this name is on this host (or in this network namespace); kUnsupported:
  // it is a process of another user.
  static Result<std::unique_ptr<MemfdConnection>> open(const std::string& name, Deadline deadline);

  // kPeerLost, kDeadlineExceeded, kCancelled.
  Result<std::string> call(std::string_view request, Deadline deadline);
  // What the last answer named need not be kept in place any longer.
  void done();
  // The descriptors that came with answers so far and have not been taken.
  std::vector<FileDescriptor> take_descriptors() { return std::exchange(descriptors_, {}); }
  // As in TransportConnection.
  void interrupt() override;
  // For polling: it hangs up once the other end is gone.
  int descriptor() const { return socket_.descriptor(); }

 private:
  explicit MemfdConnection(PacketSocket socket) : socket_(std::move(socket)) {}
  Result<std::string> exchange(std::string_view request, Deadline deadline);

  const PacketSocket socket_;
  std::vector<FileDescriptor> descriptors_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace millrace::comm
