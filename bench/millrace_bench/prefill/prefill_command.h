// SPDX-License-Identifier: Apache-2.0
// `millrace-bench prefill`: whole prompts through a model under several head plans, in one run.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "engine/runtime/rank_runtime.h"

namespace millrace::bench {

struct PrefillCommand {
  engine::RankOptions rank;
  std::vector<int64_t> tokens = {4096};
  std::vector<std::string> plans = {"dense", "vertical-slash:1000,6096"};
  int num_repeats = 3;
  int num_warm_ups = 1;
  int64_t product_rows = 0;   // 0: chosen for the device
  uint64_t seed = 1;          // of the prompt
  int64_t host_bytes = 0;     // of a rank, for pages; 0: pages are not stored
  std::string baseline_path;  // earlier results; empty: none
  std::string commit;
  std::string json_path;
};

void add_prefill_command(CLI::App& app, PrefillCommand& command);

// Runs on every rank of `world`; the first one prints and writes. Returns 0: done; 1: runs of one
// case differ; 2: could not run.
int run_prefill(const PrefillCommand& command, std::unique_ptr<comm::Communicator> world, int argc,
                char** argv);

}  // namespace millrace::bench
