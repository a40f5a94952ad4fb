// SPDX-License-Identifier: Apache-2.0
// millrace-bench: checks results, then measures how fast they are computed.
//   millrace-bench kernels --device cuda --tokens 131072 524288 --json results.json
//   mpirun -n P millrace-bench prefill --model synthetic:llama-3-8b --cp P --tokens 131072
// Exit status: 0 done; 1 a result was wrong; 2 could not run.
#include <cstdio>
#include <exception>
#include <memory>

#include "bench/millrace_bench/kernels/kernels_command.h"
#include "bench/millrace_bench/prefill/prefill_command.h"
#include "comm/mpi/mpi_session.h"
#include "comm/nccl/nccl_communicator.h"
#include "common/cli/help_formatter.h"
#include "common/cli/parse.h"
#include "engine/ranks/rank_end.h"

int main(int argc, char** argv) {
  using namespace millrace::bench;
  CLI::App app("Times kernels and whole prefills, and compares them with what the machine can do.",
               "millrace-bench");
  app.formatter(std::make_shared<millrace::cli::HelpFormatter>());
  app.require_subcommand(1);
  app.fallthrough();
  KernelsCommand kernels;
  auto* kernels_app = app.add_subcommand("kernels", "operations, one at a time");
  add_kernels_command(*kernels_app, kernels);
  PrefillCommand prefill;
  auto* prefill_app = app.add_subcommand("prefill", "whole prompts, one head plan after another");
  add_prefill_command(*prefill_app, prefill);
  if (const auto status = millrace::cli::parse(app, argc, argv)) return *status;
  try {
    if (kernels_app->parsed()) return run_kernels(kernels, argc, argv);
    millrace::comm::prepare_nccl();
    millrace::comm::MpiSession session(argc, argv);
    prefill.rank.engine.end_process = millrace::engine::end_rank;
    return run_prefill(prefill, session.world(), argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace-bench: %s\n", e.what());
    return 2;
  }
}
