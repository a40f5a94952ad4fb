// SPDX-License-Identifier: Apache-2.0
// The connection to a worker group, as the scheduler sees it.
#pragma once

#include <string>

#include "protocol/control_messages.pb.h"

namespace millrace::coordinator {

// No function waits or calls back into its caller.
class GroupLink {
 public:
  virtual ~GroupLink() = default;
  virtual void send(const protocol::Envelope& envelope) = 0;
  virtual void close(const std::string& why) = 0;
  // Whether the peer's host still acknowledges what is sent, whatever its process does.
  virtual bool host_answers() const = 0;
};

}  // namespace millrace::coordinator
