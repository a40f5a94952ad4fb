// SPDX-License-Identifier: Apache-2.0
// millrace-batch: runs a file of prompts through a group of ranks, without a coordinator.
//   mpirun -n P millrace-batch --model DIR --input prompts.jsonl --output DIR [--tp T --cp C] ...
// Exit status: 0 all prompts done; 1 some failed (their result lines say why); 2 the job could not
// run to its end, or the command line is wrong.

#include <unistd.h>

#include <cstdio>
#include <exception>

#include "comm/mpi/job_record.h"
#include "comm/mpi/mpi_session.h"
#include "comm/nccl/nccl_communicator.h"
#include "common/cli/choice_option.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/dtype.h"
#include "common/log.h"
#include "common/logging/init_logging.h"
#include "engine/ranks/rank_end.h"
#include "engine/runtime/rank_cli.h"
#include "worker/batch/batch_job.h"

namespace millrace::worker {

namespace {

struct Options {
  engine::RankOptions rank;
  BatchOptions batch;
  double layer_timeout_s = 1800;
};

void add_options(CLI::App& app, Options& options) {
  engine::add_rank_options(app, options.rank);
  app.add_option("--input", options.batch.input_path, "prompts, one JSON object per line")
      ->type_name("FILE")
      ->required();
  app.add_option("--output", options.batch.output_directory, "directory for results.jsonl and kv/")
      ->type_name("DIR")
      ->required();
  app.add_option("--tokenizer", options.batch.tokenizer_directory,
                 "folder with tokenizer.json, for prompts that are text")
      ->type_name("DIR")
      ->default_str("that of --model");
  app.add_option("--tokenizer-python", options.batch.tokenizer_python,
                 "Python that has the package tokenizers")
      ->type_name("PATH")
      ->capture_default_str();
  app.add_flag("--resume", options.batch.resume, "continue from the results in DIR");
  engine::add_prompt_options(app, options.batch.head_plan, options.batch.min_recall,
                             options.layer_timeout_s);
  cli::add_choice<bool>(app, "--kv", options.batch.save_kv, {{"none", false}, {"save", true}},
                        "what to do with KV caches; save: write them to kv/<id>/");
  auto* share = app.add_option(
      "--kv-budget", options.batch.kv_budget,
      "share of its pages that each layer keeps for the tokens behind the first, above 0; those "
      "with most attention mass stay");
  share->type_name("SHARE")->check(cli::number_range(0.0, 1.0))->capture_default_str();
  app.add_option("--kv-budget-tokens", options.batch.kv_budget_tokens,
                 "the same in tokens of each layer and kv head, whatever the prompt's length")
      ->type_name("N")
      ->check(cli::number_range<int64_t>(1))
      ->excludes(share);
  app.add_flag("--recall-by-head", options.batch.recall_by_head,
               "write each layer's and head's recall to the results");
}

int report(const Result<BatchSummary>& summary) {
  if (!summary.ok()) {
    log::error("{}", summary.error().to_string());
    return 2;
  }
  fmt::print("{} prompts done, {} failed, {} tokens in {:.1f} s ({:.0f} tokens/s)", summary->num_ok,
             summary->num_failed, summary->num_tokens, summary->total_s,
             static_cast<double>(summary->num_tokens) / std::max(summary->total_s, 1e-9));
  if (summary->num_done_before > 0)
    fmt::print(", {} done by an earlier job", summary->num_done_before);
  fmt::print("\n");
  return summary->num_failed == 0 ? 0 : 1;
}

Result<void> check_budget(const BatchOptions& options) {
  if (!(options.kv_budget > 0)) {
    return error(Errc::kInvalidArgument, "--kv-budget {} keeps nothing; must be above 0, at most 1",
                 options.kv_budget);
  }
  if ((options.kv_budget == 1 && options.kv_budget_tokens == 0) || !options.save_kv) return {};
  return error(Errc::kInvalidArgument, "a --kv-budget with --kv save: files hold whole caches");
}

Result<BatchSummary> run_job(engine::RankRuntime& runtime, const BatchOptions& options) {
  MR_RETURN_IF_ERROR(runtime.check_head_plan(options.head_plan, options.min_recall));
  MR_RETURN_IF_ERROR(check_budget(options));
  const auto watch = RankWatch::alone(engine::end_rank);
  if (!watch.ok()) engine::end_rank(watch.error());
  BatchJob job(batch_resources(runtime, watch->get()), options);
  auto summary = engine::or_end_rank([&] { return job.run(); });
  if (!summary.ok() && summary.error().code == Errc::kPeerLost) engine::end_rank(summary.error());
  return summary;
}

int run(comm::MpiSession& session, Options& options) {
  auto world = session.world();
  const bool root = world->rank() == 0;
  init_logging(fmt::format("batch/{}", world->rank()));
  options.rank.engine.end_process = engine::end_rank;
  auto runtime = engine::or_end_rank(
      [&] { return engine::RankRuntime::create(std::move(world), options.rank); });
  if (!runtime.ok()) {
    if (root) log::error("{}", runtime.error().to_string());
    return 2;
  }
  if (options.batch.tokenizer_directory.empty()) {
    options.batch.tokenizer_directory = options.rank.model_directory;
  }
  if (options.rank.compute_dtype) options.batch.dtype = dtype_name(*options.rank.compute_dtype);
  options.batch.crossover_tokens = (*runtime)->crossover_tokens();
  options.batch.layer_timeout = cli::from_seconds(options.layer_timeout_s);
  options.batch.show_progress = root && isatty(STDERR_FILENO) != 0;
  const auto summary = run_job(**runtime, options.batch);
  if (root) return report(summary);
  return summary.ok() ? 0 : 2;  // rank 0 reports what ends the job on all ranks
}

}  // namespace

}  // namespace millrace::worker

int main(int argc, char** argv) {
  millrace::worker::Options options;
  CLI::App app(
      "Prefills a file of prompts on a group of ranks, without a coordinator:\n"
      "  mpirun -n 4 millrace-batch --model DIR --input prompts.jsonl --output DIR --tp 2 --cp 2",
      "millrace-batch");
  app.formatter(std::make_shared<millrace::cli::HelpFormatter>());
  app.set_version_flag("--version", MILLRACE_VERSION);
  millrace::worker::add_options(app, options);
  if (const auto status = millrace::cli::parse(app, argc, argv)) return *status;
  try {
    millrace::comm::prepare_nccl();
    millrace::init_logging("batch");  // until the rank is known
    // What a killed job of any batch has left on this host.
    const auto record = millrace::comm::JobRecord::of_this_process("millrace-batch");
    record.remove_dead_predecessors();
    millrace::comm::MpiSession session(argc, argv);
    const int status = millrace::worker::run(session, options);
    // Ranks of a killed mpirun that were still alive when this one began are gone by now.
    record.remove_dead_predecessors();
    return status;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace-batch: %s\n", e.what());
    return 2;
  }
}
