// SPDX-License-Identifier: Apache-2.0
// Counters shared by the threads of a server.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::comm {

struct TcpServerCounts {
  std::atomic<int64_t> requests = 0, bytes_sent = 0, bytes_received = 0, failures = 0;
  std::atomic<int64_t> refused = 0;      // connections not let in
  std::atomic<int64_t> reply_bytes = 0;  // of replies under way
};

}  // namespace millrace::comm
