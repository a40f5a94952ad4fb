// SPDX-License-Identifier: Apache-2.0
// The settings of a coordinator.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/net/tls_context.h"
#include "common/tracing/otlp_endpoint.h"
#include "coordinator/api/parse_prefill.h"
#include "coordinator/http/tokenizer_settings.h"
#include "coordinator/schedule/scheduler.h"

namespace millrace::coordinator {

struct HttpLimits {
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 64ull << 20;  // of a prefill or a completion
  // For every other request. Only prompts are large, and only they are parsed on another thread;
  // what the deciding thread parses has to be small.
  uint64_t max_small_body_bytes = 4 << 10;
  // For all bodies being received and parsed, except small ones, and for one client's share of
  // them. 0: half, and at least one body of the largest size.
  uint64_t body_pool_bytes = 1ull << 30;
  uint64_t body_pool_per_client_bytes = 0;
  // For all large replies being sent.
  uint64_t reply_pool_bytes = 1ull << 30;
  int max_connections = 1024;
  int max_connections_per_client = 0;  // 0: half of all
  // In addition: for /health, /ready and /metrics, and to turn all other requests away.
  int health_probe_connections = 32;
  // Between requests, and for a whole header. Longer than routers and proxies keep an unused
  // connection in their pools, so that they, who send the next request, close it first.
  Duration idle = std::chrono::seconds(120);
  Duration health_probe_idle = std::chrono::seconds(5);  // the same, beyond max_connections
  Duration progress = std::chrono::seconds(20);    // for the next piece of a body or a response
  Duration body_time = std::chrono::minutes(10);   // for a whole body
  uint64_t min_body_rate = 16 << 10;               // bytes a second, once `progress` has passed
  Duration keep_alive = std::chrono::seconds(10);  // between ": ping" comments of a stream
  // A completion that is answered with a stream waits so long for its outcome, since an error then
  // has its own status; the stream begins when this is over.
  Duration early_outcome = std::chrono::seconds(5);
  Duration lease_answer = std::chrono::seconds(5);  // of a group, to a renewal
  Duration group_handshake = std::chrono::seconds(5);
};

// Connections to the group port: far more groups than one coordinator was ever meant for, and those
// that have not registered, in all and from one address. One more of these ends the oldest.
struct GroupLimits {
  int groups = 256;
  int strangers = 256;
  int strangers_of_address = 64;
};

// Hooks for tests, otherwise empty. Each may throw or block.
struct ServerFaults {
  std::function<void()> accepting;                         // a connection, of a client or a group
  std::function<void(std::string_view target)> answering;  // a request that was read completely
  std::function<void()> group_message;
  std::function<void()> writing;  // of a manifest, on a thread of its own
  std::function<void()> tick;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t http_port = 8000;  // 0: any free one
  uint16_t group_port = 8001;
  std::optional<uint16_t> admin_port;  // for health probes only, with places of its own
  std::string token_file;              // "" : everybody may do everything
  TlsFiles http_tls;                   // without a certificate: not encrypted
  TlsFiles group_tls;                  // the same; with a CA, groups need its certificate
  SchedulerSettings scheduler;
  HttpLimits http;
  GroupLimits groups;
  PrefillBodyLimits body;
  TokenizerSettings tokenizers;
  std::optional<tracing::OtlpEndpoint> otlp_endpoint;  // where traces go; nullopt: none are made
  double trace_share = 1;  // of the requests that come without a trace: how many are traced
  ServerFaults faults;
  // Completions that should take longer are answered without a cache, and so are those that cannot be
  // prefilled at all; nullopt: only those that ask for it.
  std::optional<Duration> decline_after;
  // How long running requests may take once a shutdown has begun.
  Duration shutdown_timeout = std::chrono::seconds(60);
};

}  // namespace millrace::coordinator
