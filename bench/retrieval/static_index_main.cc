// SPDX-License-Identifier: Apache-2.0
// What an index is worth on another prompt. Every prompt runs with the bands and columns that were
// found for the prompt before it (the first one with those of the last). For the retrieval table,
// as the counterpart of a dynamic index.
//   static_index --model DIR --input prompts.jsonl --head-plan vertical-slash:V,S
//                --output results.jsonl [--dtype float32] [--threads N]
// All prompts must have the same length. Result lines are those of millrace-batch.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>

#include "comm/local/local_group.h"
#include "engine/ranks/rank_end.h"
#include "engine/runtime/rank_cli.h"
#include "worker/batch/batch_prompt.h"

namespace millrace::bench {

namespace {

// The bands and columns of all heads of one layer.
struct SavedLayer {
  std::vector<kernels::Band> bands;
  std::vector<int32_t> num_bands, columns, num_columns;
};

SavedLayer save(const kernels::IndexView& index) {
  const auto& shape = index.shape;
  const int64_t heads = shape.num_heads;
  return {{index.bands, index.bands + heads * shape.max_bands},
          {index.num_bands, index.num_bands + heads},
          {index.columns, index.columns + heads * shape.max_columns},
          {index.num_columns, index.num_columns + heads}};
}

void restore(const SavedLayer& saved, const kernels::IndexView& index) {
  std::copy(saved.bands.begin(), saved.bands.end(), index.bands);
  std::copy(saved.num_bands.begin(), saved.num_bands.end(), index.num_bands);
  std::copy(saved.columns.begin(), saved.columns.end(), index.columns);
  std::copy(saved.num_columns.begin(), saved.num_columns.end(), index.num_columns);
}

struct Options {
  engine::RankOptions rank;
  std::string input, output, head_plan;
};

Result<engine::PrefillResult> prefill(engine::RankRuntime& runtime,
                                      const worker::BatchPrompt& prompt, const plan::HeadPlan& plan,
                                      engine::IndexTap tap) {
  return runtime.engine().prefill({.token_ids = prompt.token_ids,
                                   .plan = &plan,
                                   .probe_positions = prompt.probe_positions,
                                   .index_tap = std::move(tap)},
                                  std::chrono::minutes(30));
}

Result<void> run(const Options& options) {
  auto world = comm::LocalGroup::create(1);
  MR_ASSIGN_OR_RETURN(const auto runtime,
                      engine::RankRuntime::create(std::move(world.front()), options.rank));
  std::vector<worker::BatchPrompt> prompts;
  std::ifstream input(options.input);
  for (std::string line; std::getline(input, line);) {
    MR_ASSIGN_OR_RETURN(auto prompt, worker::parse_batch_prompt(line));
    if (!prompts.empty() && prompt.token_ids.size() != prompts.front().token_ids.size()) {
      return error(Errc::kInvalidArgument, "prompt {} has {} tokens, the first has {}", prompt.id,
                   prompt.token_ids.size(), prompts.front().token_ids.size());
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return error(Errc::kInvalidArgument, "{}: no prompts", options.input);
  MR_ASSIGN_OR_RETURN(
      const auto plan,
      plan::make_head_plan(options.head_plan, runtime->weights().config,
                           static_cast<int64_t>(prompts.front().token_ids.size()), 0));

  std::ofstream output(options.output);
  std::vector<SavedLayer> found(static_cast<size_t>(plan.num_layers()));
  const auto record = [&](const engine::BuiltIndex& built) {
    found[static_cast<size_t>(built.layer)] = save(built.index);
  };
  MR_RETURN_IF_ERROR(prefill(*runtime, prompts.back(), plan, record));
  for (const auto& prompt : prompts) {
    const auto foreign = found;
    MR_RETURN_IF_ERROR(prefill(*runtime, prompt, plan, record));
    MR_ASSIGN_OR_RETURN(const auto result,
                        prefill(*runtime, prompt, plan, [&](const engine::BuiltIndex& built) {
                          restore(foreign[static_cast<size_t>(built.layer)], built.index);
                        }));
    output << worker::batch_result_line(
        prompt.id, {.num_tokens = static_cast<int64_t>(prompt.token_ids.size()),
                    .generated_token_ids = {result.first_token},
                    .top_tokens = result.top_tokens,
                    .probe_token_ids = result.probe_token_ids,
                    .density = result.density,
                    .recall = result.recall.mean(),
                    .recall_p01 = result.recall.first_percentile(),
                    .phases = result.phases});
  }
  output.close();
  if (!output) return error(Errc::kIo, "cannot write {}", options.output);
  return {};
}

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  options.rank.crossover_tokens = 0;
  options.rank.engine.end_process = millrace::engine::end_rank;
  CLI::App app("Runs each prompt with the index of another.", "static_index");
  millrace::engine::add_rank_options(app, options.rank);
  app.add_option("--input", options.input)->required();
  app.add_option("--output", options.output)->required();
  app.add_option("--head-plan", options.head_plan)->required();
  CLI11_PARSE(app, argc, argv);
  const auto done = millrace::bench::run(options);
  if (done.ok()) return 0;
  std::cerr << done.error().to_string() << "\n";
  return 1;
}
