// SPDX-License-Identifier: Apache-2.0
// A batch job's options, the same on every rank, and the resources that it uses on one rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/engine.h"
#include "engine/index/index_tap.h"
#include "engine/ranks/rank_grid.h"
#include "engine/runtime/prompt.h"
#include "engine/runtime/rank_runtime.h"
#include "kernels/api/device.h"
#include "kvstore/rules/page_budget.h"
#include "model/weights.h"
#include "worker/batch/batch_prompt.h"
#include "worker/sync/rank_watch.h"

namespace millrace::worker {

struct BatchOptions {
  std::string input_path;
  std::string output_directory;
  std::string tokenizer_directory;  // for prompts that are text
  std::string tokenizer_python = "python3";
  std::string head_plan = "auto";
  double min_recall = 0;
  bool resume = false;  // keep an earlier job's results and do not compute them again
  bool save_kv = false;
  double kv_budget = 1;             // share of its pages that each layer keeps for generation
  int64_t kv_budget_tokens = 0;     // the same in tokens, replaces the share; 0: not given
  kvstore::PageChoice page_choice;  // for studies: BudgetSink
  bool recall_by_head = false;      // in the result lines
  std::string dtype =
      "auto";  // as it was asked for: what auto chooses may vary from start to start
  int64_t crossover_tokens = 0;
  int64_t max_line_bytes = kMaxBatchLineBytes;
  Duration layer_timeout = std::chrono::minutes(30);
  bool show_progress = false;
  engine::IndexTap index_tap;  // of every prompt; may be empty
};

// All outlive the job.
struct BatchResources {
  engine::Engine& engine;
  kernels::Device& device;
  const model::ModelWeights& weights;
  const engine::RankGrid& grid;
  const engine::PromptLimits& limits;   // the same on every rank
  const KvScales* kv_scales = nullptr;  // of caches in 8-bit floats; null: in the compute dtype
  RankWatch* watch = nullptr;           // null where nobody watches
};

// The resources of a rank that is up.
inline BatchResources batch_resources(engine::RankRuntime& runtime, RankWatch* watch = nullptr) {
  return {.engine = runtime.engine(),
          .device = runtime.device(),
          .weights = runtime.weights(),
          .grid = runtime.grid(),
          .limits = runtime.limits(),
          .kv_scales = runtime.kv_scales().get(),
          .watch = watch};
}

}  // namespace millrace::worker
