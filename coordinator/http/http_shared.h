// SPDX-License-Identifier: Apache-2.0
// What all HTTP connections of a server share.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <string>

#include "common/logging/paced_line.h"
#include "coordinator/access/token_table.h"
#include "coordinator/http/body_budget.h"
#include "coordinator/http/model_tokenizers.h"
#include "coordinator/http/server_options.h"
#include "coordinator/net/change_hub.h"
#include "coordinator/requests/coordinator_metrics.h"
#include "coordinator/schedule/scheduler.h"
#include "coordinator/tracing/request_tracer.h"

namespace millrace::coordinator {

struct HttpShared {
  const ServerOptions& options;
  const TokenTable& tokens;
  Scheduler& scheduler;
  ChangeHub& changes;
  CoordinatorMetrics& metrics;
  BodyBudget& bodies;
  // Threads that parse large bodies, so that heartbeats are not held up.
  asio::thread_pool& parsers;
  // Threads that write large answers and read large messages from groups.
  asio::thread_pool& writers;
  BodyBudget& replies;
  ModelTokenizers& tokenizers;
  RequestTracer& tracer;
  // Of this process, in every answer: clients notice that another has taken its address.
  const std::string& instance;
  // Of the words that stand for ids on the admin port (ShownNames).
  const std::string& names_key;
  // What clients that nobody knows yet can make the log say.
  PacedLine tls_line{};
  PacedLine refused_line{{.burst = 20}};
};

}  // namespace millrace::coordinator
