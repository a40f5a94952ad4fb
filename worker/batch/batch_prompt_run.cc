// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_prompt_run.h"

#include <algorithm>
#include <utility>

#include "common/float8.h"
#include "common/page_tokens.h"
#include "model/generator.h"
#include "plan/plan_for_length.h"

namespace millrace::worker {

namespace {

std::string step_after(const engine::LayerReport& report) {
  if (report.layer + 1 == report.num_layers) return "the logits";
  return fmt::format("layer {} of {}", report.layer + 2, report.num_layers);
}

}  // namespace

BatchPromptRun::BatchPromptRun(const BatchResources& resources, const BatchOptions& options,
                               RankSync& sync, const BatchPrompt& prompt)
    : resources_(resources),
      options_(options),
      sync_(sync),
      prompt_(prompt),
      partition_(resources_.engine.partition(std::ssize(prompt.token_ids))),
      directory_(options.output_directory + "/kv/" + prompt.id) {}

Result<BatchResult> BatchPromptRun::run() {
  expect("the first layer");
  const auto head_plan = plan();
  Result<void> own = head_plan.status();
  if (own.ok() && options_.save_kv) own = directory_.begin();
  MR_RETURN_IF_ERROR(sync_.all_agree(own));
  auto result = run_planned(*head_plan);
  if (!result.ok() && options_.save_kv && sync_.is_root()) {
    directory_.remove();  // half a cache is worse than none
  }
  return result;
}

// On this rank alone.
Result<plan::HeadPlan> BatchPromptRun::plan() const {
  MR_ASSIGN_OR_RETURN(
      auto plan,
      plan::make_head_plan(options_.head_plan, resources_.weights.config, partition_.num_tokens(),
                           options_.crossover_tokens, {.min_recall = options_.min_recall}));
  return plan::plan_for_length(std::move(plan), partition_.num_tokens(),
                               resources_.device.info().sparse_cost);
}

// Every wait of the host within a step has the layer timeout; a GPU's waits for its peers may have
// none.
void BatchPromptRun::expect(const std::string& step) {
  sync_.expect(step, 2 * sync_.timeouts().layer);
}

engine::KvSink* BatchPromptRun::Sinks::first() {
  if (budget) return budget.get();
  return all.empty() ? nullptr : &all;
}

Result<BatchPromptRun::Sinks> BatchPromptRun::make_sinks() const {
  const int64_t num_rows = partition_.num_tokens(resources_.grid.cp().rank());
  Sinks sinks;
  if (options_.save_kv && resources_.weights.shard.kv_replica == 0) {
    const std::string path = directory_.rank_file(sync_.world().rank());
    MR_ASSIGN_OR_RETURN(sinks.file, KvFileSink::create(resources_.device, path, resources_.weights,
                                                       num_rows, resources_.kv_scales));
    sinks.all.add(*sinks.file);
  }
  if (prompt_.max_tokens > 1) {
    MR_ASSIGN_OR_RETURN(auto retained, RetainSink::create(resources_.device, resources_.weights,
                                                          num_rows, resources_.kv_scales));
    sinks.retained = std::make_unique<RetainSink>(std::move(retained));
    sinks.all.add(*sinks.retained);
  }
  return sinks;
}

Result<BatchResult> BatchPromptRun::run_planned(const plan::HeadPlan& plan) {
  Stopwatch watch;
  // All layers' K and V will stay on the device, so free what an earlier prompt left.
  if (prompt_.max_tokens > 1) resources_.engine.groups().cp->trim();
  auto sinks = make_sinks();
  MR_RETURN_IF_ERROR(sync_.all_agree(sinks.status()));
  const double budget = options_.kv_budget_tokens == 0
                            ? options_.kv_budget
                            : std::min(1.0, static_cast<double>(options_.kv_budget_tokens) /
                                                static_cast<double>(partition_.num_tokens()));
  if (drops_pages(budget)) {
    sinks->budget = std::make_unique<BudgetSink>(
        budget, resources_.weights, partition_.num_tokens(), &sinks->all, options_.page_choice);
  }
  MR_ASSIGN_OR_RETURN(const auto prefilled, prefill(plan, *sinks));
  MR_RETURN_IF_ERROR(finish_files(prefilled, *sinks));
  BatchResult result{.num_tokens = partition_.num_tokens(),
                     .generated_token_ids = {prefilled.first_token},
                     .top_tokens = prefilled.top_tokens,
                     .probe_token_ids = prefilled.probe_token_ids,
                     .probe_logprobs = prefilled.probe_logprobs,
                     .density = prefilled.density,
                     .recall = prefilled.recall.mean(),
                     .recall_p01 = prefilled.recall.first_percentile(),
                     .recall_by_head = prefilled.recall_by_head,
                     .dense_for_length = plan.dense_for_length(),
                     .phases = prefilled.phases};
  if (sinks->budget) {
    MR_ASSIGN_OR_RETURN(result.dropped, drop_pages(*sinks));
  }
  if (prompt_.max_tokens > 1) {
    engine::PhaseTimes::Span span(result.phases, engine::Phase::kGenerate);
    MR_ASSIGN_OR_RETURN(result.generated_token_ids,
                        generate(prefilled.first_token, *sinks->retained));
  }
  result.finish_reason = model::finish_reason(result.generated_token_ids, resources_.weights.config,
                                              prompt_.ignore_eos);
  result.total_s = watch.elapsed_s();
  return result;
}

Result<engine::PrefillResult> BatchPromptRun::prefill(const plan::HeadPlan& plan, Sinks& sinks) {
  const auto at_boundary = [this](const engine::LayerReport& report) {
    expect(step_after(report));
    return Result<void>();
  };
  return resources_.engine.prefill({.token_ids = prompt_.token_ids,
                                    .plan = &plan,
                                    .probe_positions = prompt_.probe_positions,
                                    .probe_target_ids = prompt_.probe_target_ids,
                                    .recall_by_head = options_.recall_by_head,
                                    .sink = sinks.first(),
                                    .index_tap = options_.index_tap,
                                    .at_boundary = at_boundary},
                                   options_.layer_timeout);
}

// The manifest says that the files are complete, so all ranks must have closed theirs before.
Result<void> BatchPromptRun::finish_files(const engine::PrefillResult& result, Sinks& sinks) {
  expect("saving the cache");
  MR_RETURN_IF_ERROR(sync_.all_agree(sinks.file != nullptr ? sinks.file->close() : Result<void>()));
  if (!options_.save_kv) return {};
  return sync_.all_agree(sync_.is_root() ? save_manifest(result) : Result<void>());
}

// Only the cache in memory is made smaller.
Result<DroppedPages> BatchPromptRun::drop_pages(Sinks& sinks) {
  expect("dropping pages");
  const Deadline deadline = Deadline::after(options_.layer_timeout);
  MR_ASSIGN_OR_RETURN(const auto chosen, sinks.budget->choose(resources_.grid.tp(), deadline));
  Result<void> own;
  if (sinks.retained) {
    own = sinks.retained->keep(chosen.kept, partition_.pages(resources_.grid.cp().rank()),
                               resources_.weights.shard.first_kv_head, deadline);
  }
  MR_RETURN_IF_ERROR(sync_.all_agree(own));
  const int64_t element_bytes = resources_.kv_scales
                                    ? int64_t{sizeof(Float8)}
                                    : dtype_bytes(resources_.weights.compute_dtype);
  const int64_t page_bytes = 2 * kPageTokens * resources_.weights.config.head_dim * element_bytes;
  const int64_t pages = chosen.kept.count_dropped();
  return DroppedPages{.pages = pages, .bytes = pages * page_bytes, .mass = chosen.dropped_mass};
}

Result<std::vector<int32_t>> BatchPromptRun::generate(int32_t first_token,
                                                      const RetainSink& retained) {
  auto generator =
      model::Generator::create(resources_.device, resources_.weights, resources_.grid.tp(),
                               resources_.grid.cp(), prompt_.max_tokens);
  MR_RETURN_IF_ERROR(sync_.all_agree(generator.status()));
  const auto positions = partition_.positions(resources_.grid.cp().rank());
  return generator->generate({.prompt = retained.slabs(),
                              .prompt_positions = positions,
                              .heads = retained.heads(),
                              .num_prompt_tokens = std::ssize(prompt_.token_ids),
                              .first_token = first_token,
                              .max_tokens = prompt_.max_tokens,
                              .ignore_eos = prompt_.ignore_eos},
                             [this] {
                               expect("the next token");
                               return Deadline::after(options_.layer_timeout);
                             });
}

Result<void> BatchPromptRun::save_manifest(const engine::PrefillResult& result) const {
  MR_ASSIGN_OR_RETURN(const auto text,
                      kv_manifest_json({.id = prompt_.id,
                                        .num_tokens = partition_.num_tokens(),
                                        .first_token = result.first_token,
                                        .density = result.density,
                                        .float8 = resources_.kv_scales},
                                       resources_.weights.config, resources_.weights.compute_dtype,
                                       partition_, resources_.grid.shape()));
  return directory_.write_manifest(text);
}

}  // namespace millrace::worker
