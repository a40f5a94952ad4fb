// Command-line options that programs with a rank share.
#pragma once

#include <CLI/CLI.hpp>

#include "worker/runtime/rank_runtime.h"

namespace millrace::worker {

// Binds the options to `options`, which must outlive the parse.
// What any program has that runs a model: --model, --device, --dtype, --threads,
// --max-prompt-tokens.
void add_model_options(CLI::App& app, RankOptions& options);
// These and what millrace-worker and millrace-batch have besides, for ranks of a grid.
void add_rank_options(CLI::App& app, RankOptions& options);

}  // namespace millrace::worker
