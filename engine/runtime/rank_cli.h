// SPDX-License-Identifier: Apache-2.0
// Command-line options shared by the programs that have a rank.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/runtime/rank_runtime.h"

namespace millrace::engine {

// Both bind the options to `options`, which must outlive the parse.
// The options of any program that runs a model: --model, --device, --dtype, --threads,
// --max-prompt-tokens.
void add_model_options(CLI::App& app, RankOptions& options);
// These, and the further options of millrace-worker and millrace-batch for ranks of a grid.
void add_rank_options(CLI::App& app, RankOptions& options);
// How a rank computes prompts, of programs that serve or run them: --head-plan, --min-recall and
// --layer-timeout-s. The variables have the defaults, and outlive the parse.
void add_prompt_options(CLI::App& app, std::string& head_plan, double& min_recall,
                        double& layer_timeout_s);

}  // namespace millrace::engine
