// What a fleet of groups does with a trace of prompts: the coordinator's scheduler, with groups that
// take as long as measured ones.
//   fleet_bench --groups h200-cp4:8 --groups h200:32 --load 0.8 --requests 20000
// Prints a table of waiting times for each order of the queue; of prompts that begin alike (--documents,
// or a trace with hash_ids), without caches, with them, and with routing by what they hold.
// Exit status: 0; 2 the command line, the times or the trace are wrong.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <vector>

#include "bench/fleet/fleet_report.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/log.h"

namespace {

using namespace millrace;
using namespace millrace::bench;
using coordinator::QueueOrder;

struct Arguments {
  std::vector<std::string> groups;
  std::string times = "bench/fleet/group_times.json";
  std::string trace;
  TraceShape shape;
  double load = 0.7;
  int64_t pool_tokens = 4 << 20;
  int64_t preempt_tokens = 16384;
  int64_t side_by_side_tokens = 8192;
  FleetOptions fleet;
};

// What one run has and another has not.
struct Setup {
  const char* name;
  QueueOrder order = QueueOrder::kFair;
  int64_t preempt_tokens = 0;
  bool caches = false;
  bool routes_by_prefix = false;
  int64_t side_by_side_tokens = 0;
};

CLI::App& describe(CLI::App& app, Arguments& arguments) {
  app.formatter(std::make_shared<cli::HelpFormatter>());
  app.add_option("--groups", arguments.groups, "groups of a kind, for example h200-cp4:8")
      ->type_name("KIND:NUMBER")
      ->required();
  app.add_option("--times", arguments.times, "what prompts take on each kind")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--trace", arguments.trace, "prompts to play; default: drawn")->type_name("FILE");
  app.add_option("--requests", arguments.shape.num_requests, "prompts to draw")
      ->check(cli::number_range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--load", arguments.load,
                 "prompts drawn a second, as a share of what the groups can take")
      ->check(cli::number_range(0.001, 10.0))
      ->capture_default_str();
  app.add_option("--owners", arguments.shape.num_owners, "names that the prompts drawn come from")
      ->check(cli::number_range(1, 10'000))
      ->capture_default_str();
  app.add_option("--documents", arguments.shape.num_documents,
                 "documents that the prompts drawn begin with; 0: they share nothing")
      ->check(cli::number_range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--shared", arguments.shape.shared,
                 "share of such a prompt that is its document's")
      ->check(cli::number_range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", arguments.shape.seed, "of the prompts drawn")->capture_default_str();
  app.add_option("--pool-tokens", arguments.pool_tokens, "tokens that a group's KV pools hold")
      ->check(cli::number_range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--preempt-tokens", arguments.preempt_tokens,
                 "longest prompt that runs between two layers of a longer one; 0: none does")
      ->check(cli::number_range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--side-by-side-tokens", arguments.side_by_side_tokens,
                 "longest prompt that runs on one context-parallel rank beside others, on groups "
                 "whose kind has times of a lane; 0: none does")
      ->check(cli::number_range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--pull-rate", arguments.fleet.pull_tokens_per_s,
                 "tokens of a cache that a client pulls in a second")
      ->check(cli::number_range(1.0, 1e12))
      ->capture_default_str();
  app.add_option("--queue-limit", arguments.fleet.scheduler.max_queued_requests,
                 "prompts that may wait")
      ->check(cli::number_range(0, 1'000'000))
      ->capture_default_str();
  return app;
}

Result<void> add_groups(const std::string& text, const std::map<std::string, GroupTimes>& times,
                        Arguments& arguments) {
  const size_t colon = text.rfind(':');
  const std::string kind = text.substr(0, colon);
  int number = 0;
  if (colon != std::string::npos) {
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), number);
  }
  if (number < 1 || number > 100'000) {
    return error(Errc::kInvalidArgument, "--groups '{}' must be KIND:NUMBER", text);
  }
  if (times.count(kind) == 0) {
    return error(Errc::kInvalidArgument, "--groups '{}': {} has no such kind", text,
                 arguments.times);
  }
  for (int i = 0; i < number; ++i) {
    arguments.fleet.groups.push_back({.name = fmt::format("{}-{:05}", kind, i),
                                      .kind = kind,
                                      .pool_tokens = arguments.pool_tokens});
  }
  return {};
}

// Prompts a second that would keep all groups busy.
double capacity(const FleetOptions& fleet, const std::map<std::string, GroupTimes>& times,
                TraceShape shape) {
  shape.num_requests = std::max<int64_t>(shape.num_requests, 10'000);
  const Trace sample = draw_trace(shape);
  std::map<std::string, double> mean_s;
  for (const auto& [kind, of_kind] : times) {
    double sum_s = 0;
    for (const Arrival& arrival : sample) sum_s += of_kind.seconds_of(arrival.num_tokens);
    mean_s[kind] = sum_s / static_cast<double>(sample.size());
  }
  double per_s = 0;
  for (const auto& group : fleet.groups) per_s += 1 / (mean_s[group.kind] + group.overhead_s);
  return per_s;
}

Result<Trace> trace_of(const Arguments& arguments, const std::map<std::string, GroupTimes>& times) {
  if (!arguments.trace.empty()) return read_trace(arguments.trace);
  TraceShape shape = arguments.shape;
  shape.requests_per_s = arguments.load * capacity(arguments.fleet, times, shape);
  return draw_trace(shape);
}

void play(FleetOptions fleet, const std::map<std::string, GroupTimes>& times, const Trace& trace,
          const Setup& setup) {
  fleet.scheduler.queue_order = setup.order;
  fleet.scheduler.routes_by_prefix = setup.routes_by_prefix;
  for (auto& group : fleet.groups) {
    group.max_preempting_tokens = setup.preempt_tokens;
    group.caches = setup.caches;
    group.side_by_side_tokens = setup.side_by_side_tokens;
  }
  Simulation simulation(fleet, times);
  const std::vector<Outcome> outcomes = simulation.run(trace);
  double last_s = 0;
  int64_t tokens = 0;
  int64_t cached = 0;
  for (const Outcome& outcome : outcomes) {
    last_s = std::max(last_s, outcome.answered_s);
    if (outcome.failure) continue;
    tokens += outcome.arrival.num_tokens;
    cached += outcome.cached_tokens;
  }
  fmt::print(
      "queue order {}: {} groups, {} GPUs, {} prompts in {:.0f} s, {:.0f} tokens a second, groups "
      "busy {:.0f} %{}\n{}\n",
      setup.name, fleet.groups.size(), simulation.num_gpus(), outcomes.size(), last_s,
      static_cast<double>(tokens) / last_s, 100 * simulation.utilisation(),
      setup.caches ? fmt::format(", {:.1f} % of the tokens cached",
                                 100 * static_cast<double>(cached) / static_cast<double>(tokens))
                   : "",
      wait_table(wait_rows(outcomes)));
}

Result<void> run(Arguments& arguments) {
  MR_ASSIGN_OR_RETURN(const auto times, read_group_times(arguments.times));
  for (const std::string& text : arguments.groups) {
    MR_RETURN_IF_ERROR(add_groups(text, times, arguments));
  }
  MR_ASSIGN_OR_RETURN(const Trace trace, trace_of(arguments, times));
  std::vector<Setup> setups;
  if (const double seen = share_seen_before(trace); seen > 0) {
    fmt::print("{:.1f} % of the tokens seen before\n\n", 100 * seen);
    setups = {{.name = "fair, no cache"},
              {.name = "fair, with caches", .caches = true},
              {.name = "fair, with caches and routing by prefix",
               .caches = true,
               .routes_by_prefix = true}};
    for (Setup& setup : setups) setup.preempt_tokens = arguments.preempt_tokens;
    if (arguments.side_by_side_tokens > 0) {
      Setup last = setups.back();
      last.name = "fair, with caches, routing by prefix and short prompts side by side";
      last.side_by_side_tokens = arguments.side_by_side_tokens;
      setups.push_back(last);
    }
  } else {
    setups = {{.name = "arrival", .order = QueueOrder::kArrival}, {.name = "fair"}};
    if (arguments.preempt_tokens > 0) {
      setups.push_back(
          {.name = "fair, preempted between layers", .preempt_tokens = arguments.preempt_tokens});
    }
    if (arguments.side_by_side_tokens > 0) {
      setups.push_back({.name = "fair, preempted between layers, short prompts side by side",
                        .preempt_tokens = arguments.preempt_tokens,
                        .side_by_side_tokens = arguments.side_by_side_tokens});
    }
  }
  for (const Setup& setup : setups) play(arguments.fleet, times, trace, setup);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Plays a trace of prompts on simulated groups");
  CLI11_PARSE(describe(app, arguments), argc, argv);
  spdlog::set_level(spdlog::level::warn);
  const auto done = run(arguments);
  if (done.ok()) return 0;
  fmt::print(stderr, "fleet_bench: {}\n", done.error().message);
  return 2;
}
