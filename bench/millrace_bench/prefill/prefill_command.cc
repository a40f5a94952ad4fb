// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/prefill_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "bench/millrace_bench/bench_device.h"
#include "bench/millrace_bench/prefill/prefill_runs.h"
#include "common/units.h"
#include "engine/runtime/rank_cli.h"

namespace millrace::bench {

namespace json = boost::json;

namespace {

int failed(const Error& error) {
  fmt::print(stderr, "millrace-bench: {}\n", error.to_string());
  return 2;
}

Result<void> write_results(const PrefillCommand& command, const RunInfo& info,
                           const PrefillRuns& runs) {
  if (command.json_path.empty()) return {};
  json::object document = to_json(info);
  for (auto& member : runs.json()) document[member.key()] = member.value();
  return write_json(command.json_path, document);
}

}  // namespace

void add_prefill_command(CLI::App& app, PrefillCommand& command) {
  engine::add_rank_options(app, command.rank);
  app.get_option("--model")->description(
      "a directory, or synthetic:llama-3-8b, synthetic:llama-3-70b, synthetic:qwen2.5-7b, "
      "synthetic:qwen3-30b-a3b, synthetic:tiny, synthetic:tiny-experts");
  // Measuring the length at which auto changes its plan takes longer than many benchmarks.
  command.rank.crossover_tokens = 0;
  app.add_option("--tokens", command.tokens, "prompt lengths")
      ->check(CLI::Range(int64_t{1}, int64_t{4} << 20));
  app.add_option("--head-plan", command.plans,
                 "head plans, as text or files; put dense first to compare with it");
  app.add_option("--repeats", command.num_repeats, "timed runs of each plan; the median counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--warm-ups", command.num_warm_ups, "runs before the timed ones")
      ->check(CLI::Range(0, 100));
  app.add_option("--product-rows", command.product_rows,
                 "rows of the matrix products that set the roof");
  app.add_option("--seed", command.seed, "of the prompt");
  app.add_option_function<std::string>(
         "--host-pool",
         [&command](const std::string& text) {
           const auto bytes = parse_bytes(text);
           if (!bytes.ok()) throw CLI::ValidationError("--host-pool", bytes.error().message);
           command.host_bytes = *bytes;
         },
         "host memory of each rank for pages, as in a service; none: pages are not "
         "stored")
      ->type_name("SIZE");
  app.add_option("--baseline", command.baseline_path,
                 "results of fewer ranks, written by --json, for parallel efficiency");
  app.add_option("--commit", command.commit, "commit to name in the results");
  app.add_option("--json", command.json_path, "write results to this file");
}

int run_prefill(const PrefillCommand& command, std::unique_ptr<comm::Communicator> world, int argc,
                char** argv) {
  const bool root = world->rank() == 0;
  const Stopwatch start;
  auto runtime = engine::RankRuntime::create(std::move(world), command.rank);
  if (!runtime.ok()) return failed(runtime.error());
  const auto info = run_info((*runtime)->device(), command.commit, argc, argv);
  if (root) {
    fmt::print("{}, commit {}, {}\n{}: {:.1f} s to start\n", info.device, info.commit, info.date,
               (*runtime)->weights().config.name, start.elapsed_s());
  }
  PrefillRuns runs(**runtime, command);
  const auto done = runs.all();
  const auto written = root ? write_results(command, info, runs) : Result<void>();
  if (!done.ok()) return failed(done.error());
  if (!written.ok()) return failed(written.error());
  return runs.repeatable() ? 0 : 1;
}

}  // namespace millrace::bench
