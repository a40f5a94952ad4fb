// SPDX-License-Identifier: Apache-2.0
#include "worker/cli/worker_options.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/net/socket_address.h"
#include "common/cli/check_by.h"
#include "common/cli/choice_option.h"
#include "common/cli/number_range.h"
#include "common/host_port.h"
#include "common/logging/printable.h"
#include "common/quote.h"
#include "common/text/utf8.h"
#include "common/units.h"
#include "engine/runtime/rank_cli.h"
#include "model/load_model_config.h"

namespace millrace::worker {

namespace {

// As in the coordinator.
constexpr size_t kMaxGroupNameChars = 128;
constexpr size_t kMaxModelNameChars = 256;

// A name appears in metrics and logs, which have one entry a line, and in JSON.
std::string check_name(const std::string& name, size_t max_chars) {
  if (name.empty() || name.size() > max_chars) {
    return fmt::format("must have 1 to {} characters, not {}", max_chars, name.size());
  }
  if (utf8_prefix(name) < name.size()) return "is not UTF-8";
  return printable(name) != name ? "has control characters: " + printable(name) : "";
}

std::string check_group_name(const std::string& name) {
  return check_name(name, kMaxGroupNameChars);
}

std::string check_model_name(const std::string& name) {
  return check_name(name, kMaxModelNameChars);
}

// Decode nodes are told to connect to it: a wildcard address to listen on cannot be reached.
std::string check_kv_host(const std::string& host) {
  if (host.empty()) return "must name an address of this host";
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  const std::string bare = without_brackets(host);
  const bool is_address = inet_pton(AF_INET, bare.c_str(), bytes.data()) == 1 ||
                          inet_pton(AF_INET6, bare.c_str(), bytes.data()) == 1;
  const bool unspecified =
      is_address && std::all_of(bytes.begin(), bytes.end(), [](auto byte) { return byte == 0; });
  return unspecified
             ? host + " is not an address that decode nodes can reach; use an address of this host"
             : "";
}

// None: "auto".
Result<std::optional<int64_t>> parse_pool(std::string_view text) {
  if (text == "auto") return std::optional<int64_t>();
  MR_ASSIGN_OR_RETURN(const int64_t bytes, parse_bytes(text));
  return std::optional(bytes);
}

void add_pool_options(CLI::App& app, WorkerOptions& options) {
  app.add_option("--device-pool", options.device_pool,
                 "device memory of each rank for KV pages, for example 256MiB; auto: 1/16 of the "
                 "free memory, with a GPU what the longest prompts leave")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_pool))
      ->default_str("1/16 of the free memory; with a GPU none");
  app.add_option("--host-pool", options.host_pool,
                 "host memory of each rank for KV pages and for the records of the pages of all "
                 "pools, which take a twentieth of 16-bit pages")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->default_str("1/8 of the free memory; with a GPU 1/2");
  app.add_option("--disk-pool", options.disk_pool,
                 "disk space of each rank for KV pages; needs --disk-directory")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->capture_default_str();
  app.add_option("--prefix-disk", options.prefix_disk,
                 "disk space of each rank, besides the disk pool, for cached prefixes that the "
                 "group's next start finds; needs --disk-directory")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->capture_default_str();
  app.add_option("--disk-directory", options.disk_directory,
                 "directory for the disk pool and kept prefixes; rank r uses DIR/rank-<r>")
      ->type_name("DIR");
}

void add_kv_server_options(CLI::App& app, WorkerOptions& options) {
  app.add_option("--kv-host", options.kv_host,
                 "address of this host at which decode nodes and other ranks reach it")
      ->type_name("HOST")
      ->check(check_kv_host)
      ->capture_default_str();
  app.add_option("--kv-port", options.kv_port,
                 "port of rank 0's KV server; rank r uses N + r; 0: any free ports")
      ->check(cli::number_range(0, 65535))
      ->capture_default_str();
  cli::add_choice<KvTransport>(app, "--kv-transport", options.kv_transport,
                               {{"tcp", KvTransport::kTcp}, {"ucx", KvTransport::kUcx}},
                               "transport to decode nodes; ucx: to those on this host only");
  auto* certificate = app.add_option("--kv-tls-cert", options.kv_tls.certificate,
                                     "certificate of the KV ports, in PEM, for the names and "
                                     "addresses in --kv-host; read again when it changes");
  auto* key = app.add_option("--kv-tls-key", options.kv_tls.key, "its key, without a passphrase");
  auto* ca = app.add_option("--kv-tls-ca", options.kv_tls.ca,
                            "certificates, in PEM, that decode nodes' must be signed by");
  certificate->type_name("FILE")->default_str("none: not encrypted")->needs(key);
  key->type_name("FILE")->needs(certificate);
  ca->type_name("FILE")->default_str("none: they need no certificate")->needs(certificate);
  cli::add_choice<bool>(app, "--kv-same-host", options.kv_same_host, {{"on", true}, {"off", false}},
                        "whether decode processes on this host, of this user, copy pages from the "
                        "ranks' host pools themselves");
}

// An endpoint to listen on. ZeroMQ itself reports errors of the host.
std::string check_events_endpoint(const std::string& endpoint) {
  if (endpoint.starts_with("ipc://") && endpoint.size() > std::strlen("ipc://")) return "";
  if (endpoint.starts_with("tcp://") &&
      HostPort::parse(endpoint.substr(std::strlen("tcp://"))).ok())
    return "";
  return fmt::format("'{}' is neither tcp://HOST:PORT nor ipc://PATH", endpoint);
}

void add_events_options(CLI::App& app, WorkerOptions& options) {
  auto* endpoint =
      app.add_option("--kv-events-endpoint", options.kv_events.endpoint,
                     "where rank 0 publishes which pages the group has cached, with their "
                     "token ids, as vLLM does over ZeroMQ: tcp://127.0.0.1:5557; tcp://*:5557 "
                     "is open to everybody");
  endpoint->type_name("ENDPOINT")->check(check_events_endpoint)->default_str("none: not published");
  app.add_option("--kv-events-replay-endpoint", options.kv_events.replay_endpoint,
                 "where subscribers ask for events that they missed")
      ->type_name("ENDPOINT")
      ->check(check_events_endpoint)
      ->default_str("none")
      ->needs(endpoint);
  app.add_option("--kv-events-topic", options.kv_events.topic, "topic of the events")
      ->type_name("TOPIC")
      ->default_str("empty")
      ->needs(endpoint);
  app.add_option("--kv-events-buffer-steps", options.kv_events.buffer_batches,
                 "batches of events that are kept for replays, 64 MiB at most")
      ->check(cli::number_range(1, 1 << 24))
      ->capture_default_str()
      ->needs(endpoint);
}

// All three or none, as on the coordinator.
void add_group_tls(CLI::App& app, TlsFiles& files) {
  auto* certificate = app.add_option("--group-tls-cert", files.certificate,
                                     "certificate to show to the coordinator, in PEM; read again "
                                     "for every connection");
  auto* key = app.add_option("--group-tls-key", files.key, "its key, without a passphrase");
  auto* ca = app.add_option("--group-tls-ca", files.ca,
                            "certificates, in PEM, that the coordinator's must be signed by");
  certificate->type_name("FILE")->default_str("none: not encrypted")->needs(key, ca);
  key->type_name("FILE")->needs(certificate);
  ca->type_name("FILE")->needs(certificate);
}

}  // namespace

void add_worker_options(CLI::App& app, WorkerOptions& options) {
  engine::add_rank_options(app, options.rank);
  app.add_option("--coordinator", options.coordinator, "the coordinator's group port")
      ->option_text("HOST:PORT")
      ->check(cli::check_by(HostPort::parse))
      ->capture_default_str();
  add_group_tls(app, options.group_tls);
  app.add_option("--group-name", options.group_name, "label of this group in metrics")
      ->type_name("NAME")
      ->check(check_group_name)
      ->capture_default_str();
  app.add_option("--served-model-name", options.rank.served_model_name,
                 "name by which clients ask for the model, such as org/name")
      ->type_name("NAME")
      ->check(check_model_name)
      ->default_str("the last part of --model, or its repository in a Hugging Face cache");
  engine::add_prompt_options(app, options.group.head_plan, options.group.min_recall,
                             options.layer_timeout_s);
  add_kv_server_options(app, options);
  add_events_options(app, options);
  add_pool_options(app, options);
  app.add_option(
         "--preempt-tokens", options.preempt_tokens,
         "new tokens, at most, of a prompt that runs between two layers of a longer one; 0: none "
         "does")
      ->check(cli::number_range(0, 1 << 30))
      ->capture_default_str();
  app.add_option(
         "--side-by-side-tokens", options.side_by_side_tokens,
         "most new tokens of a prompt that runs on one context-parallel rank while others run on "
         "the rest, where several wait; 0: none does")
      ->check(cli::number_range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--drain-timeout-s", options.drain_timeout_s,
                 "seconds that a draining group waits for its leases to end")
      ->check(cli::number_range(0.0, cli::kMaxSeconds))
      ->capture_default_str();
  app.add_option(
         "--keep-timeout-s", options.keep_timeout_s,
         "seconds that it then takes at most to write what --prefix-disk is to keep and has "
         "not been written")
      ->check(cli::number_range(0.0, cli::kMaxSeconds))
      ->capture_default_str();
}

Result<void> check_together(const WorkerOptions& options) {
  if (options.rank.served_model_name.empty() && !options.rank.model_directory.empty()) {
    const std::string wrong = check_model_name(model::model_name(options.rank.model_directory));
    if (!wrong.empty()) {
      return error(Errc::kInvalidArgument,
                   "--model {}: the name that this gives the model {}; --served-model-name gives "
                   "it another",
                   quote(std::string_view(options.rank.model_directory)), wrong);
    }
  }
  MR_ASSIGN_OR_RETURN(const int64_t disk_bytes, parse_bytes(options.disk_pool));
  if (disk_bytes > 0 && options.disk_directory.empty()) {
    return error(Errc::kInvalidArgument, "--disk-pool {}: needs --disk-directory",
                 options.disk_pool);
  }
  MR_ASSIGN_OR_RETURN(const int64_t prefix_bytes, parse_bytes(options.prefix_disk));
  if (prefix_bytes > 0 && options.disk_directory.empty()) {
    return error(Errc::kInvalidArgument, "--prefix-disk {}: needs --disk-directory",
                 options.prefix_disk);
  }
  if (options.kv_transport == KvTransport::kUcx && !options.kv_tls.certificate.empty()) {
    return Error(Errc::kInvalidArgument, "--kv-tls-cert: needs --kv-transport tcp");
  }
  if (options.kv_transport == KvTransport::kUcx) {
    const auto address = comm::SocketAddress::resolve(options.kv_host, 0);
    if (address.ok() && !address->is_loopback()) {
      return error(
          Errc::kInvalidArgument,
          "--kv-transport ucx: is for decode nodes on this host, and --kv-host {} is open to "
          "others; strangers can end a rank through UCX's ports",
          options.kv_host);
    }
  }
  const int num_ranks = options.rank.grid.tp * options.rank.grid.cp;
  if (options.kv_port > 0 && options.kv_port + num_ranks - 1 > 65535) {
    return error(Errc::kInvalidArgument,
                 "--kv-port {}: the last of {} ranks would use port {}, above 65535",
                 options.kv_port, num_ranks, options.kv_port + num_ranks - 1);
  }
  return {};
}

Result<GroupRankOptions> group_rank_options(const WorkerOptions& options) {
  GroupRankOptions made;
  made.rank = options.rank;
  made.group = options.group;
  made.group_name = options.group_name;
  made.pools.disk_directory = options.disk_directory;
  made.pools.shares_memory = options.kv_same_host;
  made.kv_host = options.kv_host;
  made.kv_port = options.kv_port;
  made.rank.side_by_side_tokens = options.side_by_side_tokens;
  made.rank.device_pool_bytes = std::nullopt;
  made.rank.device_pool_auto = options.device_pool == "auto";
  if (!options.device_pool.empty()) {
    MR_ASSIGN_OR_RETURN(made.rank.device_pool_bytes, parse_pool(options.device_pool));
  }
  if (!options.host_pool.empty()) {
    MR_ASSIGN_OR_RETURN(made.pools.host_bytes, parse_bytes(options.host_pool));
  }
  MR_ASSIGN_OR_RETURN(made.pools.disk_bytes, parse_bytes(options.disk_pool));
  MR_ASSIGN_OR_RETURN(made.pools.kept_bytes, parse_bytes(options.prefix_disk));
  made.group.max_preempting_tokens = options.preempt_tokens;
  made.group.layer_timeout = cli::from_seconds(options.layer_timeout_s);
  made.group.drain_timeout = cli::from_seconds(options.drain_timeout_s);
  made.group.keep_timeout = cli::from_seconds(options.keep_timeout_s);
  return made;
}

}  // namespace millrace::worker
