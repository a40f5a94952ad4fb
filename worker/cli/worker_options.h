// SPDX-License-Identifier: Apache-2.0
// The command line of millrace-worker.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/net/tls_files.h"
#include "common/result.h"
#include "worker/events/zmq/zmq_publisher.h"
#include "worker/group/group_rank.h"

namespace millrace::worker {

// The transport at a rank's KV port.
enum class KvTransport {
  kTcp,  // comm/tcp: strangers may reach it
  kUcx,  // comm/ucx: shared memory; open to this host only
};

struct WorkerOptions {
  engine::RankOptions rank;
  GroupOptions group;
  std::string coordinator = "127.0.0.1:8001";
  TlsFiles group_tls;  // without a certificate: not encrypted
  std::string group_name = "group-0";
  std::string kv_host = "127.0.0.1";
  int kv_port = 0;
  KvTransport kv_transport = KvTransport::kTcp;
  TlsFiles kv_tls;  // without a certificate: not encrypted
  bool kv_same_host = true;
  ZmqPublisherOptions kv_events;  // without an endpoint: none are published
  int64_t preempt_tokens = 8192;
  int64_t side_by_side_tokens = 8192;
  std::string device_pool, host_pool;
  std::string disk_pool = "0";
  std::string prefix_disk = "0";
  std::string disk_directory;
  double layer_timeout_s = 300;
  double drain_timeout_s = 30;
  double keep_timeout_s = 10;
};

// Converts text, and numbers without a unit, to what the rank takes. kInvalidArgument names the
// option.
Result<GroupRankOptions> group_rank_options(const WorkerOptions& options);

// Binds the options to `options`, which must outlive the parse.
void add_worker_options(CLI::App& app, WorkerOptions& options);

// Checks how the options fit together, before anything is loaded: kInvalidArgument names them.
Result<void> check_together(const WorkerOptions& options);

}  // namespace millrace::worker
