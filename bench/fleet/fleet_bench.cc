// SPDX-License-Identifier: Apache-2.0
// What a fleet of groups does with a trace of prompts. It runs the coordinator's scheduler with
// simulated groups that take as long as measured ones.
//   fleet_bench --groups h200-cp4:8 --groups h200:32 --load 0.8 --requests 20000
// Prints a table of waiting times for each order of the queue. If prompts share beginnings
// (--documents, or a trace with hash_ids): without caches, with caches, and with routing by what
// they hold. If the groups are of several kinds: also with groups chosen by room. With
// --fails-first, it prints what runs out first as load grows, in this fleet, in one of twice as
// many groups, and so on. Exit status: 0 done; 2 the command line, the times or the trace are
// wrong.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "bench/fleet/fleet_limits.h"
#include "bench/fleet/fleet_report.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/log.h"

namespace {

using namespace millrace;
using namespace millrace::bench;
using coordinator::GroupOrder;
using coordinator::QueueOrder;

// The loads that --fails-first tries, and the shortest trace of a large fleet.
constexpr double kLeastLoad = 0.5;
constexpr double kLoadStep = 0.1;
constexpr double kMostLoad = 1.5;
constexpr double kLeastTraceS = 30;

struct Arguments {
  std::vector<std::string> groups;
  std::string times = "bench/fleet/group_times.json";
  std::string trace;
  TraceShape shape;
  double load = 0.7;
  int64_t pool_tokens = 4 << 20;
  int64_t preempt_tokens = 16384;
  int64_t side_by_side_tokens = 8192;
  double deadline_s = 600;
  bool each = false;
  bool fails_first = false;
  int most_gpus = 1024;
  Objective objective;
  FleetOptions fleet;
};

// How the runs differ.
struct Setup {
  const char* name;
  QueueOrder order = QueueOrder::kFair;
  int64_t preempt_tokens = 0;
  bool caches = false;
  bool routes_by_prefix = false;
  int64_t side_by_side_tokens = 0;
  GroupOrder group_order = GroupOrder::kSoonestEnd;
};

void describe(CLI::App& app, Arguments& arguments) {
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
  app.add_option("--deadline-s", arguments.deadline_s, "of each prompt, in seconds")
      ->check(cli::positive_seconds())
      ->capture_default_str();
  app.add_flag("--each", arguments.each,
               "print each prompt's arrival, tokens and seconds to the answer");
  app.add_flag("--fails-first", arguments.fails_first,
               "raise the load until prompts fail, with these groups, twice as many, and so on");
  app.add_option("--most-gpus", arguments.most_gpus, "the largest fleet of --fails-first")
      ->check(cli::number_range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--objective-s", arguments.objective.mean_s,
                 "mean time to the answer that prompts of 16K to 256K tokens should have")
      ->check(cli::positive_seconds())
      ->capture_default_str();
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

// The prompts a second that would keep all groups busy.
double capacity(const FleetOptions& fleet, const std::map<std::string, GroupTimes>& times,
                TraceShape shape) {
  shape.num_requests = std::max<int64_t>(shape.num_requests, 10'000);
  const Trace sample = draw_trace(shape);
  std::map<std::string, double> mean_s;
  for (const auto& [kind, of_kind] : times) {
    double sum_s = 0;
    for (const Arrival& arrival : sample) sum_s += of_kind.seconds_of(arrival.num_tokens);
    mean_s[kind] = of_kind.overhead_s + sum_s / static_cast<double>(sample.size());
  }
  double per_s = 0;
  for (const auto& group : fleet.groups) per_s += 1 / mean_s[group.kind];
  return per_s;
}

Result<Trace> trace_of(const Arguments& arguments, const std::map<std::string, GroupTimes>& times) {
  if (!arguments.trace.empty()) return read_trace(arguments.trace);
  TraceShape shape = arguments.shape;
  shape.requests_per_s = arguments.load * capacity(arguments.fleet, times, shape);
  return draw_trace(shape);
}

FleetOptions with(FleetOptions fleet, const Setup& setup) {
  fleet.scheduler.queue_order = setup.order;
  fleet.scheduler.group_order = setup.group_order;
  fleet.scheduler.routes_by_prefix = setup.routes_by_prefix;
  for (auto& group : fleet.groups) {
    group.max_preempting_tokens = setup.preempt_tokens;
    group.caches = setup.caches;
    group.side_by_side_tokens = setup.side_by_side_tokens;
  }
  return fleet;
}

void print_each(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    fmt::print("  {:10.3f} s {:8} tokens {}\n", outcome.arrival.at_s, outcome.arrival.num_tokens,
               outcome.failure ? "failed" : fmt::format("{:8.3f} s", outcome.waited_s()));
  }
}

void play(const Arguments& arguments, const std::map<std::string, GroupTimes>& times,
          const Trace& trace, const Setup& setup) {
  const FleetOptions fleet = with(arguments.fleet, setup);
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
      last_s > 0 ? static_cast<double>(tokens) / last_s : 0, 100 * simulation.utilisation(),
      setup.caches && tokens > 0
          ? fmt::format(", {:.1f} % of the tokens cached",
                        100 * static_cast<double>(cached) / static_cast<double>(tokens))
          : "",
      wait_table(wait_rows(outcomes)));
  if (arguments.each) print_each(outcomes);
}

FirstLimits find_limits(const Arguments& arguments, const FleetOptions& fleet,
                        const std::map<std::string, GroupTimes>& times) {
  TraceShape shape = arguments.shape;
  const double most_per_s = capacity(fleet, times, shape);
  shape.num_requests =
      std::max<int64_t>(shape.num_requests, std::llround(kLeastTraceS * kMostLoad * most_per_s));
  FirstLimits limits;
  for (double load = kLeastLoad; load < kMostLoad + kLoadStep / 2 && !limits.fails();
       load += kLoadStep) {
    shape.requests_per_s = load * most_per_s;
    limits.add(load,
               limits_hit(Simulation(fleet, times).run(draw_trace(shape)), arguments.objective));
  }
  return limits;
}

// A row for each fleet, until a fleet has more than --most-gpus.
void print_limits(const Arguments& arguments, const std::map<std::string, GroupTimes>& times) {
  fmt::print("{:>6} {:>7}", "GPUs", "groups");
  for (const auto name : kLimitNames) fmt::print(" {:>9}", name);
  fmt::print("  first (the least load at which each is hit, up to {})\n", kMostLoad);
  FleetOptions fleet =
      with(arguments.fleet, {.name = "", .preempt_tokens = arguments.preempt_tokens});
  for (;;) {
    int num_gpus = 0;
    for (const auto& group : fleet.groups) num_gpus += times.at(group.kind).num_gpus;
    if (num_gpus > arguments.most_gpus) return;
    const FirstLimits limits = find_limits(arguments, fleet, times);
    fmt::print("{:>6} {:>7}", num_gpus, fleet.groups.size());
    for (size_t i = 0; i < kLimitNames.size(); ++i) {
      const auto load = limits.load_of(static_cast<Limit>(i));
      fmt::print(" {:>9}", load ? fmt::format("{:.1f}", *load) : "-");
    }
    const auto first = limits.first();
    fmt::print("  {}\n", first ? kLimitNames[static_cast<size_t>(*first)] : "none");
    std::fflush(stdout);
    const auto half = fleet.groups;
    for (SimulatedGroupOptions group : half) {
      group.name += fmt::format("-of-{}", 2 * half.size());
      fleet.groups.push_back(group);
    }
  }
}

Result<void> run(Arguments& arguments) {
  MR_ASSIGN_OR_RETURN(const auto times, read_group_times(arguments.times));
  for (const std::string& text : arguments.groups) {
    MR_RETURN_IF_ERROR(add_groups(text, times, arguments));
  }
  arguments.fleet.scheduler.default_deadline = cli::from_seconds(arguments.deadline_s);
  if (arguments.fails_first) {
    print_limits(arguments, times);
    return {};
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
    if (arguments.groups.size() > 1) {
      setups.push_back(setups.back());
      setups.back().name = "the same, groups by room";
      setups.back().group_order = GroupOrder::kMostRoom;
    }
    if (arguments.side_by_side_tokens > 0) {
      setups.push_back({.name = "fair, preempted between layers, short prompts side by side",
                        .preempt_tokens = arguments.preempt_tokens,
                        .side_by_side_tokens = arguments.side_by_side_tokens});
    }
  }
  for (const Setup& setup : setups) play(arguments, times, trace, setup);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Plays a trace of prompts on simulated groups");
  describe(app, arguments);
  if (const auto status = cli::parse(app, argc, argv)) return *status;
  millrace::log::set_level(millrace::log::Level::kWarn);
  const auto done = run(arguments);
  if (done.ok()) return 0;
  fmt::print(stderr, "fleet_bench: {}\n", done.error().message);
  return 2;
}
