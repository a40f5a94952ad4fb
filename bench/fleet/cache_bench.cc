// SPDX-License-Identifier: Apache-2.0
// How much computation the prefix cache of one group saves, under two rules for what to drop when
// it is full: the column with the least worth, by its cost, how often and when it was used
// (kvstore/rules/retention.h), or the least recently used column.
//   cache_bench
//   cache_bench --trace conversation_trace.jsonl --density 0.1
// For caches of several sizes, prints the share of the computing time, and of the tokens, that is
// saved. The first fifth of the prompts fills the cache and does not count. Exit status: 0 done; 2
// the command line or the trace is wrong.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "bench/fleet/mixed_trace.h"
#include "bench/fleet/simulated_cache.h"
#include "bench/fleet/trace.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/content/prefix_keys.h"

namespace {

using namespace millrace;
using namespace millrace::bench;

struct Arguments {
  std::string trace;
  MixShape mix;
  // An 8B model on an H100: 131,072 tokens take 3.34 s with almost no attention, 10.3 s dense
  // (docs/numbers.md).
  double row_us = 25.5;
  double pair_ns = 0.81;
  double density = 1;
  std::vector<double> shares = {0.03, 0.1, 0.3};
};

void describe(CLI::App& app, Arguments& arguments) {
  app.formatter(std::make_shared<cli::HelpFormatter>());
  app.add_option("--trace", arguments.trace,
                 "prompts to play, with hash_ids; default: drawn, long documents and short chats")
      ->type_name("FILE");
  app.add_option("--requests", arguments.mix.num_requests, "prompts to draw")
      ->check(cli::number_range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--chats", arguments.mix.chat_share, "of these, turns of conversations")
      ->check(cli::number_range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--once", arguments.mix.once_share,
                 "of the others, about documents that are asked about once")
      ->check(cli::number_range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--documents", arguments.mix.num_documents, "that the rest is about")
      ->check(cli::number_range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--changes-every", arguments.mix.changes_every,
                 "prompts after which one of these is another; 0: never")
      ->check(cli::number_range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--seed", arguments.mix.seed, "of the prompts drawn")->capture_default_str();
  app.add_option("--row-us", arguments.row_us, "microseconds of a row, but for its attention")
      ->check(cli::number_range(0.001, 1e9))
      ->capture_default_str();
  app.add_option("--pair-ns", arguments.pair_ns, "nanoseconds of a query and a key that it sees")
      ->check(cli::number_range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--density", arguments.density, "share of the keys that rows see")
      ->check(cli::number_range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--sizes", arguments.shares, "of the cache, as shares of all that prompts leave")
      ->check(cli::number_range(0.0, 1.0))
      ->capture_default_str();
}

// Time to compute the first `num_tokens` rows of a prompt.
double seconds_of(const Arguments& arguments, int64_t num_tokens) {
  const auto rows = static_cast<double>(num_tokens);
  return 1e-6 * arguments.row_us * rows +
         1e-9 * arguments.pair_ns * arguments.density * rows * rows / 2;
}

struct Saved {
  double seconds = 0;
  double tokens = 0;
};

// The saved shares of the total over all prompts but the first fifth.
Saved play(const Arguments& arguments, const Trace& trace, SimulatedCache::Keeps keeps,
           int64_t max_keys) {
  SimulatedCache cache(keeps);
  Saved saved, all;
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto& keys = trace[i].prefix_keys;
    const int64_t num_found = cache.use(keys) * kPrefixKeyTokens;
    const int64_t num_tokens = std::ssize(keys) * kPrefixKeyTokens;
    if (num_tokens == 0) continue;
    const double whole_s = seconds_of(arguments, num_tokens);
    cache.add(keys, 1e6 * whole_s / static_cast<double>(num_tokens) / arguments.row_us);
    cache.shrink(max_keys);
    if (i < trace.size() / 5) continue;
    saved.seconds += seconds_of(arguments, num_found);
    saved.tokens += static_cast<double>(num_found);
    all.seconds += whole_s;
    all.tokens += static_cast<double>(num_tokens);
  }
  return {.seconds = saved.seconds / all.seconds, .tokens = saved.tokens / all.tokens};
}

int64_t num_distinct_keys(const Trace& trace) {
  std::unordered_set<uint64_t> keys;
  for (const auto& arrival : trace) {
    keys.insert(arrival.prefix_keys.begin(), arrival.prefix_keys.end());
  }
  return std::ssize(keys);
}

Result<void> run(const Arguments& arguments) {
  Trace trace;
  if (arguments.trace.empty()) {
    trace = draw_mixed_trace(arguments.mix);
  } else {
    MR_ASSIGN_OR_RETURN(trace, read_trace(arguments.trace));
  }
  const int64_t num_keys = num_distinct_keys(trace);
  if (num_keys == 0) return error(Errc::kInvalidArgument, "the prompts have no hash_ids");
  fmt::print("{} prompts, {} tokens by content, density {}\n", trace.size(),
             num_keys * kPrefixKeyTokens, arguments.density);
  fmt::print("{:>14} {:>8} | saved of computing, %: {:>8} {:>8} | of tokens, %: {:>8} {:>8}\n",
             "cache, tokens", "of all", "latest", "worth", "latest", "worth");
  auto shares = arguments.shares;
  shares.push_back(1);
  for (const double share : shares) {
    const auto max_keys = static_cast<int64_t>(share * static_cast<double>(num_keys));
    const Saved latest = play(arguments, trace, SimulatedCache::Keeps::kLatest, max_keys);
    const Saved worth = play(arguments, trace, SimulatedCache::Keeps::kWorth, max_keys);
    fmt::print("{:>14} {:>8} | {:>21} {:>8.1f} {:>8.1f} | {:>12} {:>8.1f} {:>8.1f}\n",
               max_keys * kPrefixKeyTokens, share, "", 100 * latest.seconds, 100 * worth.seconds,
               "", 100 * latest.tokens, 100 * worth.tokens);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Plays a trace of prompts on the prefix cache of one group");
  describe(app, arguments);
  if (const auto status = cli::parse(app, argc, argv)) return *status;
  const auto done = run(arguments);
  if (done.ok()) return 0;
  fmt::print(stderr, "cache_bench: {}\n", done.error().message);
  return 2;
}
