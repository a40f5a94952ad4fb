// SPDX-License-Identifier: Apache-2.0
// millrace-coordinator: HTTP for clients, TCP for worker groups.
// Exit status: 0 stopped by a signal; 1 could not listen, or failed; 2 the command line is wrong.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <vector>

#include "common/cli/check_by.h"
#include "common/cli/choice_option.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/logging/init_logging.h"
#include "common/system/file_descriptor.h"
#include "common/tracing/otlp_endpoint.h"
#include "common/units.h"
#include "coordinator/server/descriptor_budget.h"
#include "coordinator/server/server.h"

namespace {

using namespace millrace;

// Scripts that let the system choose the ports learn them here. The file is first written under
// another name, so that a reader sees all of it or nothing.
Result<void> write_port_file(const std::string& path, const coordinator::Server& server) {
  const std::string unfinished = path + ".tmp";
  std::ofstream file(unfinished);
  const auto admin = server.admin_port();
  file << fmt::format("{{\"http_port\": {}, \"group_port\": {}{}}}\n", server.http_port(),
                      server.group_port(),
                      admin ? fmt::format(", \"admin_port\": {}", *admin) : "");
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return error(Errc::kIo, "cannot write {}", path);
  }
  return {};
}

struct Arguments {
  coordinator::ServerOptions server;
  std::string max_body = "64MiB";
  std::string body_pool = "1GiB";
  std::string body_pool_per_client;
  std::string min_body_rate = "16KiB";
  std::vector<std::string> tokenizers;
  std::string otlp_endpoint;
  double tokenizer_timeout_s = seconds(server.tokenizers.timeout);
  double group_patience_s = seconds(server.scheduler.group_patience);
  double suspended_s = seconds(server.scheduler.suspended_prefill);
  double unattended_s = seconds(server.scheduler.unattended_prefill);
  double held_result_s = seconds(server.scheduler.held_result);
  double body_timeout_s = seconds(server.http.body_time);
  double shutdown_timeout_s = seconds(server.shutdown_timeout);
  std::optional<double> decline_after_s;
  std::string port_file;
};

void add_limits(CLI::App& app, Arguments& arguments) {
  coordinator::ServerOptions& server = arguments.server;
  cli::add_choice<coordinator::QueueOrder>(
      app, "--queue-order", server.scheduler.queue_order,
      {{"fair", coordinator::QueueOrder::kFair}, {"arrival", coordinator::QueueOrder::kArrival}},
      "which waiting request a free group gets: fair to owners and to short prompts, or the "
      "oldest");
  app.add_flag_callback(
      "--no-prefix-routing", [&server] { server.scheduler.routes_by_prefix = false; },
      "do not look at which group has cached what a prompt begins with when a group is chosen");
  app.add_option("--queue-limit", server.scheduler.max_queued_requests,
                 "requests that may wait for a group")
      ->check(cli::number_range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--decline-after", arguments.decline_after_s,
                 "seconds: a completion, chat or generate that should take longer, and one that "
                 "cannot be prefilled, is answered without a cache instead of with an error, so "
                 "that the decode engine computes its prompt")
      ->check(cli::positive_seconds())
      ->default_str("never");
  app.add_option("--group-patience", arguments.group_patience_s,
                 "seconds of silence after which coordinator and group consider each other lost; "
                 "a process that dies is noticed at once")
      ->check(cli::number_range(0.5, 3600.0))
      ->capture_default_str();
  app.add_option("--max-body-bytes", arguments.max_body,
                 "largest body of a prefill or completion, for example 64MiB")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->capture_default_str();
  app.add_option("--body-pool", arguments.body_pool,
                 "memory for all bodies being received; at least --max-body-bytes")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->capture_default_str();
  app.add_option("--body-pool-per-client", arguments.body_pool_per_client,
                 "memory for the bodies of one client address; at least --max-body-bytes")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->default_str("half of --body-pool");
  app.add_option("--body-timeout", arguments.body_timeout_s, "seconds for a whole body")
      ->check(cli::positive_seconds())
      ->capture_default_str();
  app.add_option("--min-body-rate", arguments.min_body_rate,
                 "average bytes per second below which a body is cut off after its first 20 "
                 "s; 0: no minimum")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->capture_default_str();
  app.add_option("--max-connections", server.http.max_connections,
                 "concurrent HTTP connections; 32 more are accepted for health probes only")
      ->check(cli::number_range(1, 65536))
      ->capture_default_str();
  app.add_option("--max-connections-per-client", server.http.max_connections_per_client,
                 "concurrent HTTP connections of one client address")
      ->check(cli::number_range(1, 65536))
      ->default_str("half of --max-connections");
}

void add_sharing(CLI::App& app, Arguments& arguments) {
  coordinator::SchedulerSettings& scheduler = arguments.server.scheduler;
  using coordinator::OnDisconnect;
  cli::add_choice<OnDisconnect>(
      app, "--on-disconnect", scheduler.on_disconnect,
      {{"cancel", OnDisconnect::kCancel},
       {"finish", OnDisconnect::kFinish},
       {"suspend", OnDisconnect::kSuspend}},
      "what becomes of a prefill whose last client leaves, unless that says so itself: it ends, "
      "goes "
      "on, or stops after a layer and goes on when the same prompt comes again");
  app.add_option("--suspend-tokens", scheduler.least_tokens_to_suspend,
                 "prompts of fewer tokens are not suspended but end")
      ->check(cli::number_range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--suspended-time", arguments.suspended_s,
                 "seconds that a suspended prefill waits for a client")
      ->check(cli::positive_seconds())
      ->capture_default_str();
  app.add_option("--unattended-time", arguments.unattended_s,
                 "seconds that a prefill goes on without a client")
      ->check(cli::positive_seconds())
      ->capture_default_str();
  app.add_option("--held-result-time", arguments.held_result_s,
                 "seconds that its result is held for a client")
      ->check(cli::positive_seconds())
      ->capture_default_str();
  app.add_option("--max-unattended", scheduler.max_unattended,
                 "prefills without a client and results held, of one token name; 0: every prefill "
                 "ends with its last client")
      ->check(cli::number_range(0, 65536))
      ->capture_default_str();
  app.add_option("--max-unattended-tokens", scheduler.max_unattended_tokens,
                 "tokens of their prompts, of one token name")
      ->check(cli::number_range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_flag_callback(
      "--no-joining", [&scheduler] { scheduler.joins_prefills = false; },
      "every request gets a prefill of its own, and all end with their clients");
}

void add_tokenizers(CLI::App& app, Arguments& arguments) {
  coordinator::TokenizerSettings& settings = arguments.server.tokenizers;
  auto* tokenizer =
      app.add_option("--tokenizer", arguments.tokenizers,
                     "folder with the tokenizer.json of a model, so that its prompts may be text; "
                     "once for each model")
          ->option_text("MODEL=DIR")
          ->allow_extra_args(false)
          ->default_str("none: token ids only");
  app.add_option("--tokenizer-python", settings.python,
                 "Python that has the package tokenizers, which runs beside the coordinator")
      ->type_name("PATH")
      ->capture_default_str()
      ->needs(tokenizer);
  app.add_flag("--tokenizer-chat", settings.chat,
               "chat completions are taken, too: the folders have the models' chat templates, and "
               "that Python the packages transformers and jinja2")
      ->needs(tokenizer);
  app.add_option("--tokenizer-processes", settings.processes,
                 "processes of each tokenizer; each takes one text at a time")
      ->check(cli::number_range(1, 64))
      ->capture_default_str()
      ->needs(tokenizer);
  app.add_option("--tokenizer-timeout", arguments.tokenizer_timeout_s,
                 "seconds for one text, waiting included")
      ->check(cli::positive_seconds())
      ->capture_default_str()
      ->needs(tokenizer);
}

void add_tracing(CLI::App& app, Arguments& arguments) {
  auto* endpoint = app.add_option("--otlp-endpoint", arguments.otlp_endpoint,
                                  "OpenTelemetry collector that gets a trace of each prompt, by "
                                  "OTLP over HTTP, for example http://127.0.0.1:4318");
  endpoint->type_name("URL")
      ->check(cli::check_by(tracing::OtlpEndpoint::parse))
      ->default_str("none: nothing is traced");
  app.add_option("--trace-sample-ratio", arguments.server.trace_share,
                 "share of the prompts that are traced; one with the header traceparent is traced "
                 "if that says so")
      ->check(cli::number_range(0.0, 1.0))
      ->capture_default_str()
      ->needs(endpoint);
}

// All three or none: without the CA there is no telling who may be a group.
void add_group_tls(CLI::App& app, TlsFiles& files) {
  auto* certificate = app.add_option("--group-tls-cert", files.certificate,
                                     "certificate of the group port with its chain, in PEM; read "
                                     "again on SIGHUP");
  auto* key = app.add_option("--group-tls-key", files.key, "its key, without a passphrase");
  auto* ca = app.add_option("--group-tls-ca", files.ca,
                            "certificates, in PEM, that those of groups must be signed by");
  certificate->type_name("FILE")->default_str("none: not encrypted")->needs(key, ca);
  key->type_name("FILE")->needs(certificate);
  ca->type_name("FILE")->needs(certificate);
}

void add_options(CLI::App& app, Arguments& arguments) {
  coordinator::ServerOptions& server = arguments.server;
  app.add_option("--host", server.host, "IP address to listen on")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--http-port", server.http_port, "port for clients; 0: any free one")
      ->check(cli::number_range(0, 65535))
      ->capture_default_str();
  app.add_option("--group-port", server.group_port, "port for worker groups; 0: any free one")
      ->check(cli::number_range(0, 65535))
      ->capture_default_str();
  app.add_option("--admin-port", server.admin_port,
                 "additional port for /health, /ready, /metrics, /version and a page at / only; 0: "
                 "any free "
                 "port")
      ->check(cli::number_range(0, 65535))
      ->default_str("none");
  app.add_option("--tokens", server.token_file, "tokens that clients need; read again on SIGHUP")
      ->type_name("FILE")
      ->default_str("none: everybody may do everything");
  auto* certificate = app.add_option("--tls-cert", server.http_tls.certificate,
                                     "certificate of the HTTP port with its chain, in PEM; read "
                                     "again on SIGHUP");
  auto* key = app.add_option("--tls-key", server.http_tls.key, "its key, without a passphrase");
  certificate->type_name("FILE")->default_str("none: not encrypted")->needs(key);
  key->type_name("FILE")->needs(certificate);
  add_group_tls(app, server.group_tls);
  add_tokenizers(app, arguments);
  add_limits(app, arguments);
  add_sharing(app, arguments);
  add_tracing(app, arguments);
  app.add_option("--shutdown-timeout", arguments.shutdown_timeout_s,
                 "seconds that running requests get after SIGTERM")
      ->check(cli::number_range(0.0, 86400.0))
      ->capture_default_str();
  app.add_option("--port-file", arguments.port_file, "write the chosen ports here, as JSON")
      ->type_name("FILE");
}

// Reads "MODEL=DIR"; a model's name may not contain '='.
Result<void> read_tokenizers(const Arguments& arguments, coordinator::TokenizerSettings& settings) {
  for (const std::string& given : arguments.tokenizers) {
    const size_t at = given.find('=');
    if (at == std::string::npos || at == 0 || at + 1 == given.size()) {
      return error(Errc::kInvalidArgument, "--tokenizer {} is not MODEL=DIR", given);
    }
    if (!settings.directories.emplace(given.substr(0, at), given.substr(at + 1)).second) {
      return error(Errc::kInvalidArgument, "--tokenizer names model '{}' twice",
                   given.substr(0, at));
    }
  }
  settings.timeout = cli::from_seconds(arguments.tokenizer_timeout_s);
  return {};
}

Result<coordinator::ServerOptions> server_options(const Arguments& arguments) {
  coordinator::ServerOptions options = arguments.server;
  MR_RETURN_IF_ERROR(read_tokenizers(arguments, options.tokenizers));
  if (!arguments.otlp_endpoint.empty()) {
    MR_ASSIGN_OR_RETURN(options.otlp_endpoint,
                        tracing::OtlpEndpoint::parse(arguments.otlp_endpoint));
  }
  MR_ASSIGN_OR_RETURN(const int64_t body_bytes, parse_bytes(arguments.max_body));
  MR_ASSIGN_OR_RETURN(const int64_t pool_bytes, parse_bytes(arguments.body_pool));
  if (pool_bytes < body_bytes) {
    return error(Errc::kInvalidArgument, "--body-pool {} is less than --max-body-bytes {}",
                 arguments.body_pool, arguments.max_body);
  }
  if (!arguments.body_pool_per_client.empty()) {
    MR_ASSIGN_OR_RETURN(const int64_t client_bytes, parse_bytes(arguments.body_pool_per_client));
    if (client_bytes < body_bytes) {
      return error(Errc::kInvalidArgument,
                   "--body-pool-per-client {} is less than --max-body-bytes {}",
                   arguments.body_pool_per_client, arguments.max_body);
    }
    options.http.body_pool_per_client_bytes = static_cast<uint64_t>(client_bytes);
  }
  MR_ASSIGN_OR_RETURN(const int64_t min_rate, parse_bytes(arguments.min_body_rate));
  options.http.min_body_rate = static_cast<uint64_t>(min_rate);
  options.scheduler.group_patience = cli::from_seconds(arguments.group_patience_s);
  options.scheduler.suspended_prefill = cli::from_seconds(arguments.suspended_s);
  options.scheduler.unattended_prefill = cli::from_seconds(arguments.unattended_s);
  options.scheduler.held_result = cli::from_seconds(arguments.held_result_s);
  options.http.body_time = cli::from_seconds(arguments.body_timeout_s);
  options.http.max_body_bytes = static_cast<uint64_t>(body_bytes);
  options.http.body_pool_bytes = static_cast<uint64_t>(pool_bytes);
  options.shutdown_timeout = cli::from_seconds(arguments.shutdown_timeout_s);
  if (arguments.decline_after_s) {
    options.decline_after = cli::from_seconds(*arguments.decline_after_s);
  }
  return options;
}

// Takes as many descriptors as the system lets this process have, and no more connections than they
// reach for. Otherwise connections below their limit would keep health probes out.
void fit_to_descriptors(coordinator::ServerOptions& options) {
  using coordinator::DescriptorBudget;
  // Listeners, the log, files, and what libraries open. A tokenizer's process is started anew beside
  // the old one.
  constexpr int64_t kOwn = 40;
  const auto tokenizers = static_cast<int64_t>(options.tokenizers.directories.size());
  const int64_t own = kOwn + 2 * tokenizers * options.tokenizers.processes;
  const int64_t descriptors = raise_descriptor_limit();
  const auto budget = DescriptorBudget::of(descriptors, own,
                                           {.connections = options.http.max_connections,
                                            .health_probes = options.http.health_probe_connections,
                                            .strangers = options.groups.strangers,
                                            .groups = options.groups.groups});
  if (budget.connections < options.http.max_connections) {
    log::warn(
        "the limit of {} open files is too low for --max-connections {}: {} connections of clients "
        "are taken, {} of health probes and {} of groups",
        descriptors, options.http.max_connections, budget.connections, budget.health_probes,
        budget.groups);
  }
  options.http.max_connections = budget.connections;
  options.http.health_probe_connections = budget.health_probes;
  options.groups.strangers = budget.strangers;
  options.groups.strangers_of_address =
      std::min(options.groups.strangers_of_address, budget.strangers);
  options.groups.groups = budget.groups;
}

Result<void> run(const coordinator::ServerOptions& options, const std::string& port_file) {
  MR_ASSIGN_OR_RETURN(const auto server, coordinator::Server::create(options));
  if (!port_file.empty()) MR_RETURN_IF_ERROR(write_port_file(port_file, *server));
  const auto at = [&options](uint16_t port) {
    return HostPort{.host = without_brackets(options.host), .port = port}.to_string();
  };
  log::info("{} on {}, groups on {}", options.http_tls.certificate.empty() ? "HTTP" : "HTTPS",
            at(server->http_port()), at(server->group_port()));
  if (const auto admin = server->admin_port()) log::info("health probes on {}", at(*admin));
  if (options.otlp_endpoint) log::info("traces to {}", options.otlp_endpoint->to_string());
  if (options.token_file.empty()) {
    log::warn("no --tokens: whoever reaches the HTTP port may do everything");
  }
  if (options.group_tls.certificate.empty()) {
    log::warn("no --group-tls-cert: whoever reaches the group port may be a group");
  }
  server->run(/*handle_signals=*/true);
  log::info("stopped");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Accepts prefill requests over HTTP and dispatches them to worker groups. On SIGTERM it\n"
      "finishes running requests, then exits.",
      "millrace-coordinator");
  app.formatter(std::make_shared<cli::HelpFormatter>());
  Arguments arguments;
  add_options(app, arguments);
  app.set_version_flag("--version", MILLRACE_VERSION);
  if (const auto status = cli::parse(app, argc, argv)) return *status;
  auto options = server_options(arguments);
  if (!options.ok()) {
    std::fprintf(stderr, "millrace-coordinator: %s\n", options.error().message.c_str());
    return cli::kUsageStatus;
  }
  init_logging("coordinator");
  std::signal(SIGHUP, SIG_IGN);  // until Server::run() takes it
  fit_to_descriptors(*options);
  if (const auto ran = run(*options, arguments.port_file); !ran.ok()) {
    log::error("{}", ran.error().message);
    return 1;
  }
  return 0;
}
