// All that can be set about a coordinator.
#pragma once

#include <string>

#include "coordinator/prefill_body.h"
#include "coordinator/scheduler.h"

namespace millrace::coordinator {

struct HttpLimits {
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 64ull << 20;  // of a prefill
  // Of every other request. Only prompts are large, and only they are parsed off the thread that
  // decides and beats: what it parses itself has to be small.
  uint64_t max_small_body_bytes = 4 << 10;
  // Of all bodies that are being received and parsed, but for small ones.
  uint64_t body_pool_bytes = 1ull << 30;
  int max_connections = 1024;
  // Beyond these: for /health, /ready and /metrics, and to tell all others that there is no room.
  int probe_connections = 32;
  Duration idle = std::chrono::seconds(75);         // between requests, and for a whole header
  Duration probe_idle = std::chrono::seconds(5);    // the same, beyond max_connections
  Duration progress = std::chrono::seconds(20);     // for the next piece of a body or a response
  Duration keep_alive = std::chrono::seconds(10);   // between ": ping" comments of a stream
  Duration lease_answer = std::chrono::seconds(5);  // of a group, to a renewal
  Duration group_handshake = std::chrono::seconds(5);
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t http_port = 8000;  // 0: any free one
  uint16_t group_port = 8001;
  SchedulerSettings scheduler;
  HttpLimits http;
  PrefillBodyLimits body;
  // How long running requests may take after the wish to shut down.
  Duration shutdown_timeout = std::chrono::seconds(60);
};

}  // namespace millrace::coordinator
