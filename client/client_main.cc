// SPDX-License-Identifier: Apache-2.0
// millrace-client: sends prompts to a coordinator and manages the resulting requests.
// Exit status: 0 the answer came; 1 an error, or no answer; 2 the command line is wrong.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "client/http_client.h"
#include "client/progress_view.h"
#include "client/prompt_file.h"
#include "client/terminal_screen.h"
#include "client/token_source.h"
#include "client/top_text.h"
#include "common/cli/check_by.h"
#include "common/cli/choice_option.h"
#include "common/cli/config_files.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/quote.h"
#include "common/system/mapped_file.h"
#include "common/system/output_file.h"
#include "common/text/read_json.h"
#include "common/tracing/trace_context.h"
#include "coordinator/text/http_text.h"
#include "coordinator/text/limits.h"
#include "coordinator/text/request_id.h"

namespace {

using namespace millrace;
using namespace millrace::client;
using coordinator::kMaxDurationMs;
using coordinator::kMaxPriority;
using coordinator::percent_encode;
namespace json = boost::json;

struct Arguments {
  std::string server_text = "127.0.0.1:8000";
  ServerAddress server;
  std::string token_file;
  std::string ca_file;
  HttpAccess access;
  std::string output;  // "" : stdout
  std::string request_id;
  std::string prompt_file;
  std::string text_file;
  std::optional<std::string> text;
  bool add_special_tokens = true;
  int64_t line = 1;
  std::string model;
  std::string head_plan;
  double min_recall = 0;
  bool recall_by_head = false;
  int64_t deadline_ms = 0;
  int64_t lease_ms = 0;
  int64_t priority = 0;
  std::string on_disconnect;
  std::string handover;
  std::string cache;
  std::optional<std::string> cache_salt;
  bool cache_impure = false;
  double kv_budget = 1;
  int64_t kv_budget_tokens = 0;
  bool events = false;  // for clients that pull during the prefill
  std::string lease_id;
  double timeout_s = 60;
  bool once = false;
  double interval_s = 1;
};

HttpClient client_for(const Arguments& arguments) {
  return HttpClient(arguments.server, arguments.access);
}

// "503 unavailable: no worker group is ready (a retry may succeed)".
std::string describe_error(int status, const std::string& body) {
  boost::system::error_code ec;
  const json::value value = json::parse(body, ec);
  const json::object* top = ec ? nullptr : value.if_object();
  const json::value* inner = top ? top->if_contains("error") : nullptr;
  if (inner == nullptr || !inner->is_object()) return fmt::format("HTTP {}: {:.200}", status, body);
  const json::object& error = inner->get_object();
  const auto text = [&](const char* key) {
    const json::value* found = error.if_contains(key);
    return found && found->is_string() ? std::string(found->get_string()) : std::string();
  };
  const json::value* retriable = error.if_contains("retriable");
  const bool again = retriable && retriable->is_bool() && retriable->get_bool();
  const json::value* id = top->if_contains("request_id");
  const bool named = id && id->is_string();
  return fmt::format("{}{}: {}{}",
                     named ? fmt::format("request {}: ", std::string(id->get_string())) : "",
                     text("type"), text("message"), again ? " (a retry may succeed)" : "");
}

Result<void> call_and_print(const Arguments& arguments, const HttpCall& call) {
  MR_ASSIGN_OR_RETURN(OutputFile output, OutputFile::open(arguments.output));
  MR_ASSIGN_OR_RETURN(const HttpAnswer answer,
                      client_for(arguments).call(call, std::chrono::seconds(30)));
  if (answer.status != 200) {
    return Error(Errc::kInternal, describe_error(answer.status, answer.body));
  }
  return output.write(answer.body + '\n');
}

// Valid ids have no characters that need escaping; check_request_id ensures that.
std::string request_path(const Arguments& arguments) {
  return "/v1/prefill/" + arguments.request_id;
}

std::string prefill_target(const Arguments& arguments) {
  std::string target = "/v1/prefill?stream=true&model=" + percent_encode(arguments.model);
  if (!arguments.add_special_tokens) target += "&add_special_tokens=false";
  if (!arguments.request_id.empty())
    target += "&request_id=" + percent_encode(arguments.request_id);
  if (!arguments.head_plan.empty()) target += "&head_plan=" + percent_encode(arguments.head_plan);
  if (arguments.min_recall > 0) target += fmt::format("&min_recall={}", arguments.min_recall);
  if (arguments.recall_by_head) target += "&recall_by_head=true";
  if (arguments.deadline_ms > 0) target += fmt::format("&deadline_ms={}", arguments.deadline_ms);
  if (arguments.lease_ms > 0) target += fmt::format("&lease_ms={}", arguments.lease_ms);
  if (arguments.priority != 0) target += fmt::format("&priority={}", arguments.priority);
  if (!arguments.on_disconnect.empty()) target += "&on_disconnect=" + arguments.on_disconnect;
  if (!arguments.handover.empty()) target += "&handover=" + arguments.handover;
  if (!arguments.cache.empty()) target += "&cache=" + arguments.cache;
  if (arguments.cache_salt) target += "&cache_salt=" + percent_encode(*arguments.cache_salt);
  if (arguments.cache_impure) target += "&cache_impure=true";
  if (arguments.kv_budget != 1) target += fmt::format("&kv_budget={}", arguments.kv_budget);
  if (arguments.kv_budget_tokens > 0) {
    target += fmt::format("&kv_budget_tokens={}", arguments.kv_budget_tokens);
  }
  return target;
}

// The prompt, whichever way it was given.
Result<HttpCall> prefill_call(const Arguments& arguments) {
  HttpCall call{"POST", prefill_target(arguments), "text/plain; charset=utf-8", {}};
  if (arguments.text) {
    call.body = *arguments.text;
  } else if (!arguments.text_file.empty()) {
    MR_ASSIGN_OR_RETURN(call.body, read_text_file(arguments.text_file, coordinator::kMaxTextBytes));
  } else {
    call.content_type = "application/octet-stream";
    MR_ASSIGN_OR_RETURN(call.body, read_prompt(arguments.prompt_file, arguments.line));
  }
  return call;
}

Result<void> prefill(const Arguments& arguments) {
  MR_ASSIGN_OR_RETURN(const HttpCall call, prefill_call(arguments));
  MR_ASSIGN_OR_RETURN(OutputFile output, OutputFile::open(arguments.output));
  ProgressView view(::isatty(STDERR_FILENO) != 0);
  protocol::SseEvent last;
  Result<void> written;
  const auto on_event = [&](const protocol::SseEvent& event) {
    view.show(event);
    if (arguments.events && written.ok()) written = output.write(protocol::to_text(event));
    last = event;
  };
  MR_ASSIGN_OR_RETURN(const HttpAnswer answer,
                      client_for(arguments).call(call, std::chrono::seconds(60), on_event));
  if (answer.status != 200) {
    return Error(Errc::kInternal, describe_error(answer.status, answer.body));
  }
  if (last.name == "error") return Error(Errc::kInternal, describe_error(200, last.data));
  if (last.name != "done") return Error(Errc::kPeerLost, "the stream ended without a result");
  return arguments.events ? written : output.write(last.data + '\n');
}

// Asks at least once, whatever the timeout.
Result<void> wait_ready(const Arguments& arguments) {
  using std::chrono::seconds;
  const Deadline deadline = Deadline::after(cli::from_seconds(arguments.timeout_s));
  const HttpClient client = client_for(arguments);
  for (;;) {
    const auto patience = std::clamp<Duration>(deadline.left(), seconds(1), seconds(5));
    const auto answer = client.call({"GET", "/ready", "", ""}, patience);
    if (answer.ok() && answer->status == 200) return {};
    if (deadline.passed()) {
      return error(
          Errc::kDeadlineExceeded, "not ready after {:.1f} s: {}", arguments.timeout_s,
          answer.ok() ? describe_error(answer->status, answer->body) : answer.error().message);
    }
    std::this_thread::sleep_for(
        std::clamp<Duration>(deadline.left(), Duration::zero(), std::chrono::milliseconds(100)));
  }
}

Result<json::object> overview(const Arguments& arguments) {
  MR_ASSIGN_OR_RETURN(
      const HttpAnswer answer,
      client_for(arguments).call({"GET", "/overview", "", ""}, std::chrono::seconds(5)));
  if (answer.status != 200) {
    return Error(Errc::kInternal, describe_error(answer.status, answer.body));
  }
  MR_ASSIGN_OR_RETURN(const json::value value, read_json(answer.body));
  if (!value.is_object()) return Error(Errc::kInternal, "the answer is no JSON object");
  return value.get_object();
}

Result<void> top_once(const Arguments& arguments) {
  MR_ASSIGN_OR_RETURN(OutputFile output, OutputFile::open(arguments.output));
  MR_ASSIGN_OR_RETURN(const json::object now, overview(arguments));
  const bool terminal = arguments.output.empty() && ::isatty(STDOUT_FILENO) != 0;
  return output.write(top_text(now, {.columns = terminal ? TerminalScreen::size().columns : 80}));
}

// Until q or a signal. What was seen last stays while there is no answer, below the reason.
Result<void> top(const Arguments& arguments) {
  if (arguments.once || !arguments.output.empty() || ::isatty(STDOUT_FILENO) == 0) {
    return top_once(arguments);
  }
  // An error of the first answer is for the shell.
  MR_ASSIGN_OR_RETURN(json::object seen, overview(arguments));
  std::string why;
  const Duration interval = cli::from_seconds(arguments.interval_s);
  Duration pause = interval;
  TerminalScreen screen;
  for (TimePoint due = Clock::steady().now() + pause;;) {
    const auto [columns, rows] = TerminalScreen::size();
    const int used = why.empty() ? 0 : 1;
    const std::string text =
        top_text(seen, {.columns = columns, .rows = std::max(1, rows - used), .bold = true});
    if (!screen.show(why.empty() ? text : fmt::format("{:.{}}\n{}", why, columns, text))) return {};
    const Duration left = due - Clock::steady().now();
    if (left > Duration::zero()) {
      if (!screen.wait(left)) return {};
      continue;
    }
    Result<json::object> next = overview(arguments);
    pause = next.ok() ? interval
                      : std::min<Duration>(2 * pause,
                                           std::max<Duration>(interval, std::chrono::seconds(30)));
    why = next.ok() ? "" : "OLD: " + quote(std::string_view(next.error().message));
    if (next.ok()) seen = *std::move(next);
    due = Clock::steady().now() + pause;
  }
}

Result<void> renew(const Arguments& arguments) {
  const json::object body{{"lease_id", arguments.lease_id}, {"lease_ms", arguments.lease_ms}};
  return call_and_print(arguments, {"POST", request_path(arguments) + "/lease:renew",
                                    "application/json", json::serialize(body)});
}

Result<void> release(const Arguments& arguments) {
  const json::object body{{"lease_id", arguments.lease_id}};
  return call_and_print(arguments, {"POST", request_path(arguments) + "/lease:release",
                                    "application/json", json::serialize(body)});
}

// What the subcommand on the command line is to do.
using Action = std::function<Result<void>()>;

void add_prefill(CLI::App& app, Arguments& arguments, Action& action) {
  auto* command = app.add_subcommand("prefill", "send a prompt and wait for its manifest");
  auto* prompt = command->add_option_group("prompt", "The prompt: one of");
  auto* tokens =
      prompt->add_option("--prompt", arguments.prompt_file,
                         "token ids: JSON, JSON lines, or .bin with little-endian int32");
  tokens->type_name("FILE");
  auto* text = prompt->add_option("--text", arguments.text, "text, as it is");
  text->type_name("TEXT")->excludes(tokens);
  auto* text_file = prompt->add_option("--text-file", arguments.text_file, "text in UTF-8");
  text_file->type_name("FILE")->excludes(tokens, text);
  prompt->require_option(1);
  command->add_flag_callback(
      "--no-special-tokens", [&arguments] { arguments.add_special_tokens = false; },
      "do not have the tokenizer add its special tokens to a text");
  command->add_option("--line", arguments.line, "line of a JSON lines file, from 1")
      ->check(cli::number_range(int64_t{1}))
      ->capture_default_str();
  command->add_option("--model", arguments.model, "model name, as in GET /v1/models")
      ->type_name("NAME")
      ->required();
  command->add_option("--request-id", arguments.request_id, "id of the request")
      ->type_name("ID")
      ->check(cli::check_by(coordinator::check_request_id))
      ->default_str("a random one");
  command
      ->add_option("--head-plan", arguments.head_plan, "head plan, as text; see docs/head-plans.md")
      ->type_name("PLAN")
      ->default_str("the group's");
  command
      ->add_option("--min-recall", arguments.min_recall,
                   "least share of its attention mass that each sampled row of an adaptive head "
                   "covers, 0 to 1")
      ->type_name("SHARE")
      ->check(cli::number_range(0.0, 1.0))
      ->default_str("the group's");
  command->add_flag("--recall-by-head", arguments.recall_by_head,
                    "ask for the recall of each layer's heads");
  command
      ->add_option("--deadline-ms", arguments.deadline_ms,
                   "time limit for queue and prefill together, in milliseconds")
      ->check(cli::number_range(int64_t{1}, kMaxDurationMs))
      ->default_str("600000");
  command
      ->add_option("--lease-ms", arguments.lease_ms,
                   "how long the KV cache is kept after the prefill, in milliseconds")
      ->check(cli::number_range(int64_t{1}, kMaxDurationMs))
      ->default_str("60000");
  command
      ->add_option("--priority", arguments.priority,
                   "of the waiting requests of one token name, lower ones come first")
      ->check(cli::number_range(-kMaxPriority, kMaxPriority))
      ->capture_default_str();
  cli::add_choice<std::string>(
      *command, "--on-disconnect", arguments.on_disconnect,
      {{"cancel", "cancel"}, {"finish", "finish"}, {"suspend", "suspend"}},
      "what becomes of the prefill if this program ends early or the deadline passes, and nobody "
      "else waits for it")
      ->default_str("the coordinator's");
  cli::add_choice<std::string>(
      *command, "--handover", arguments.handover,
      {{"at-end", "at-end"}, {"streaming", "streaming"}},
      "when the KV cache can be pulled: after the prefill, or layer by layer")
      ->default_str("at-end");
  cli::add_choice<std::string>(
      *command, "--cache", arguments.cache,
      {{"off", "off"}, {"read", "read"}, {"write", "write"}, {"both", "both"}},
      "whether the prompt begins with cached pages of earlier ones, and its own are kept")
      ->default_str("both");
  command
      ->add_option("--cache-salt", arguments.cache_salt,
                   "cached pages are shared by prompts of the same salt and token name alone")
      ->type_name(cli::kSecret);
  command->add_flag("--cache-impure", arguments.cache_impure,
                    "share pages under a head plan whose choice depends on what follows, too");
  auto* share = command->add_option(
      "--kv-budget", arguments.kv_budget,
      "share of its pages that each layer keeps, above 0; those with most attention mass stay");
  share->type_name("SHARE")->check(cli::number_range(0.0, 1.0))->capture_default_str();
  command
      ->add_option("--kv-budget-tokens", arguments.kv_budget_tokens,
                   "the same in tokens of each layer and kv head, whatever the prompt's length")
      ->type_name("N")
      ->check(cli::number_range<int64_t>(1))
      ->excludes(share);
  command->add_flag("--events", arguments.events,
                    "write all events as they arrive, for millrace-decode --events -");
  command->callback([&] { action = [&] { return prefill(arguments); }; });
}

CLI::App* add_by_id(CLI::App& app, const char* name, const char* help, Arguments& arguments,
                    Action& action, Action run) {
  auto* command = app.add_subcommand(name, help);
  command->add_option("request_id", arguments.request_id, "id of the request, from the response")
      ->type_name("ID")
      ->check(cli::check_by(coordinator::check_request_id))
      ->required();
  command->callback([&action, run = std::move(run)] { action = run; });
  return command;
}

void add_lease_id(CLI::App& command, Arguments& arguments) {
  command.add_option("--lease-id", arguments.lease_id, "lease_id of the manifest")
      ->type_name("ID")
      ->required();
}

void add_request_commands(CLI::App& app, Arguments& arguments, Action& action) {
  add_by_id(app, "status", "show the state of a request", arguments, action, [&] {
    return call_and_print(arguments, {"GET", request_path(arguments), "", ""});
  });
  add_by_id(app, "cancel", "cancel a request, or release its lease if it is done", arguments,
            action, [&] {
              return call_and_print(arguments, {"DELETE", request_path(arguments), "", ""});
            });
  auto* renewal =
      add_by_id(app, "renew", "renew a lease", arguments, action, [&] { return renew(arguments); });
  add_lease_id(*renewal, arguments);
  renewal
      ->add_option("--lease-ms", arguments.lease_ms,
                   "new duration of the lease, in milliseconds from now")
      ->check(cli::number_range(int64_t{1}, kMaxDurationMs))
      ->required();
  auto* giving_back = add_by_id(app, "release", "release a lease", arguments, action,
                                [&] { return release(arguments); });
  add_lease_id(*giving_back, arguments);
}

void add_wait_ready(CLI::App& app, Arguments& arguments, Action& action) {
  auto* command = app.add_subcommand("wait-ready", "wait until a group is ready");
  command->add_option("--timeout", arguments.timeout_s, "seconds to wait; 0: ask once")
      ->check(cli::number_range(0.0, cli::kMaxSeconds))
      ->capture_default_str();
  command->callback([&] { action = [&] { return wait_ready(arguments); }; });
}

void add_top(CLI::App& app, Arguments& arguments, Action& action) {
  auto* command =
      app.add_subcommand("top", "show groups, the queue and requests, until q is pressed");
  command->add_flag("--once", arguments.once, "print it once, as text");
  command->add_option("--interval", arguments.interval_s, "seconds from one look to the next")
      ->check(cli::number_range(0.1, 3600.0))
      ->capture_default_str();
  command->callback([&] { action = [&] { return top(arguments); }; });
}

Result<void> prepare(Arguments& arguments) {
  MR_ASSIGN_OR_RETURN(arguments.server, ServerAddress::parse(arguments.server_text));
  MR_ASSIGN_OR_RETURN(arguments.access.token, find_token(arguments.token_file));
  const char* trace = std::getenv("TRACEPARENT");
  if (trace != nullptr && tracing::parse_traceparent(trace)) arguments.access.traceparent = trace;
  if (!arguments.server.encrypted) return {};
  TlsFiles files{.ca = arguments.ca_file};
  const char* ca = std::getenv("MILLRACE_TLS_CA");
  if (files.ca.empty() && ca != nullptr) files.ca = ca;
  MR_ASSIGN_OR_RETURN(arguments.access.tls, make_client_tls(files));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Sends prompts to a Millrace coordinator, and shows, cancels, renews and releases requests.",
      "millrace-client");
  app.formatter(std::make_shared<cli::HelpFormatter>());  // subcommands inherit it
  app.set_version_flag("--version", MILLRACE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  Arguments arguments;
  app.add_option("--server", arguments.server_text,
                 "coordinator: HOST:PORT, or https://HOST:PORT where it encrypts")
      ->option_text("ADDRESS")
      ->check(cli::check_by(ServerAddress::parse))
      ->capture_default_str();
  app.add_option("--token-file", arguments.token_file, "file whose first line is the token to show")
      ->type_name("FILE")
      ->default_str("$MILLRACE_TOKEN_FILE, else $MILLRACE_TOKEN holds the token");
  app.add_option("--tls-ca", arguments.ca_file,
                 "certificates, in PEM, that the coordinator's must be signed by")
      ->type_name("FILE")
      ->default_str("$MILLRACE_TLS_CA, else those that the system trusts");
  app.add_option("--output", arguments.output, "write the JSON result here")
      ->type_name("FILE")
      ->default_str("stdout");
  Action action;
  add_prefill(app, arguments, action);
  add_request_commands(app, arguments, action);
  add_wait_ready(app, arguments, action);
  add_top(app, arguments, action);
  if (const auto status = cli::parse(app, argc, argv)) return *status;

  if (const Result<void> ready = prepare(arguments); !ready.ok()) {
    std::cerr << "millrace-client: " << ready.error().message << '\n';
    return cli::kUsageStatus;
  }
  if (const Result<void> done = action(); !done.ok()) {
    std::cerr << "millrace-client: " << done.error().message << '\n';
    return 1;
  }
  return 0;
}
