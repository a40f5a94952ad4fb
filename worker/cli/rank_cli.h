// Command-line options that millrace-worker and millrace-batch share.
#pragma once

#include <CLI/CLI.hpp>

#include "worker/runtime/rank_runtime.h"

namespace millrace::worker {

// Binds the options to `options`, which must outlive the parse.
void add_rank_options(CLI::App& app, RankOptions& options);

}  // namespace millrace::worker
