// SPDX-License-Identifier: Apache-2.0
// millrace-batch with an oracle in place of the adaptive pattern's estimator: in every layer, each
// adaptive head attends to the pages that its rule picks from exact masses (exact_index.h). For
// tables of bench/quality/run.
//   exact_index --model DIR --input prompts.jsonl --output DIR
//               [--head-plan adaptive:GAMMA,ENOUGH] [--rows N] [--min-recall R] [--resume] ...
// Runs on a CPU and on one rank. The sampled rows are those of --rows, whatever the plan says.
// Result lines are those of millrace-batch; their seconds include the time of the oracle.

#include <CLI/CLI.hpp>
#include <iostream>

#include "bench/quality/exact_index.h"
#include "comm/local/local_group.h"
#include "engine/ranks/rank_end.h"
#include "engine/runtime/rank_cli.h"
#include "worker/batch/batch_job.h"

namespace millrace::bench {

namespace {

struct Options {
  engine::RankOptions rank;
  worker::BatchOptions batch = {.head_plan = "adaptive"};
  int32_t rows = kernels::kTileRows;
};

// Heads of other patterns keep their lists.
void replace_adaptive(const engine::BuiltIndex& built, int32_t rows,
                      const kernels::cpu::Context& context) {
  std::vector<int32_t> heads;
  std::vector<kernels::AdaptiveRule> rules;
  for (int32_t head = 0; head < built.queries.num_query_heads; ++head) {
    const auto& pattern = built.plan->at(built.layer, head);
    if (pattern.pattern != plan::Pattern::kAdaptive) continue;
    heads.push_back(head);
    rules.push_back(plan::adaptive_rule(pattern));
  }
  if (heads.empty()) return;  // the index may have no room for blocks
  bench::build_exact({.q = built.queries.q,
                      .num_query_heads = built.queries.num_query_heads,
                      .scale = built.queries.scale,
                      .kv = built.kv,
                      .tiles = built.tiles,
                      .heads = heads,
                      .rules = rules,
                      .sampled_rows = rows,
                      .index = built.index},
                     context);
}

Result<worker::BatchSummary> run(Options& options) {
  auto world = comm::LocalGroup::create(1);
  MR_ASSIGN_OR_RETURN(const auto runtime,
                      engine::RankRuntime::create(std::move(world.front()), options.rank));
  const auto device = runtime->device().info();
  if (!device.host_memory) {
    return error(Errc::kUnsupported, "exact masses are computed on a CPU, not on {}", device.name);
  }
  MR_RETURN_IF_ERROR(runtime->check_head_plan(options.batch.head_plan, options.batch.min_recall));
  options.batch.crossover_tokens = runtime->crossover_tokens();
  const auto context = kernels::cpu::fastest_context(device.num_threads);
  options.batch.index_tap = [&](const engine::BuiltIndex& built) {
    replace_adaptive(built, options.rows, context);
  };
  return worker::BatchJob(worker::batch_resources(*runtime), options.batch).run();
}

void add_options(CLI::App& app, Options& options) {
  engine::add_rank_options(app, options.rank);
  app.add_option("--input", options.batch.input_path)->required();
  app.add_option("--output", options.batch.output_directory)->required();
  app.add_flag("--resume", options.batch.resume);
  app.add_option("--head-plan", options.batch.head_plan)->capture_default_str();
  app.add_option("--min-recall", options.batch.min_recall)->check(CLI::Range(0.0, 1.0));
  app.add_flag("--recall-by-head", options.batch.recall_by_head);
  app.add_option("--rows", options.rows, "rows of a tile that are heard, at even steps")
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64}))
      ->capture_default_str();
}

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  options.rank.engine.end_process = millrace::engine::end_rank;
  CLI::App app("Runs prompts with pages chosen by exact masses.", "exact_index");
  millrace::bench::add_options(app, options);
  options.rank.device = {.kind = millrace::engine::DeviceChoice::Kind::kCpu};
  CLI11_PARSE(app, argc, argv);
  const auto summary = millrace::bench::run(options);
  if (!summary.ok()) {
    std::cerr << summary.error().to_string() << "\n";
    return 2;
  }
  return summary->num_failed == 0 ? 0 : 1;
}
