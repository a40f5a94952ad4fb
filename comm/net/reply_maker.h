// SPDX-License-Identifier: Apache-2.0
// The one place in which servers of all transports call what makes replies, and decide what is sent:
// the reply, or an error in its place if it is too large for its client or for the transport, or if
// making it threw. An exception costs one reply, never a thread of the server. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "comm/api/transport.h"
#include "common/logging/paced_line.h"

namespace millrace::comm {

class ReplyMaker {
 public:
  using Make = std::function<TransportReply()>;

  struct Reply {
    int32_t errc = 0;           // 0 or an Errc; then `content` is empty
    int64_t payload_bytes = 0;  // also of one that is not sent because it is too large
    TransportReply content;
  };

  // Text for the client about a reply that has an Errc in its place.
  static Error refusal(int32_t errc, int64_t payload_bytes, int64_t destination_bytes);

  // Counts replies that are errors.
  explicit ReplyMaker(std::atomic<int64_t>& failures) : failures_(failures) {}

  // For log lines: the server's address. To be set before the server starts.
  void set_name(std::string name) { name_ = std::move(name); }

  // Calls `make`. A reply with TransportReply::later is returned as it is: leave it to readers,
  // which call this again with what it holds. `destination_bytes`: the most that the client takes.
  Reply call(const Make& make, int64_t destination_bytes) noexcept;

 private:
  Reply refused(Errc code, int64_t payload_bytes) noexcept;

  std::atomic<int64_t>& failures_;
  std::string name_;
  PacedLine thrown_line_, large_line_;  // clients may be the cause
};

}  // namespace millrace::comm
