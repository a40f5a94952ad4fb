// One prompt of a batch job, on all ranks: prefill, its KV files, generation.
#include <memory>
#include <utility>

#include "model/generator.h"
#include "plan/plan_for_length.h"
#include "worker/batch/batch_job.h"
#include "worker/batch/fan_out_sink.h"
#include "worker/batch/kv_files.h"
#include "worker/ranks/agreement.h"

namespace millrace::worker {

namespace {

std::string step_after(const LayerReport& report) {
  if (report.layer + 1 == report.num_layers) return "the logits";
  return fmt::format("layer {} of {}", report.layer + 2, report.num_layers);
}

}  // namespace

struct BatchJob::Sinks {
  std::unique_ptr<KvFileSink> file;      // where KV is saved, by one of the ranks that have it
  std::unique_ptr<RetainSink> retained;  // where more tokens are generated
  FanOutSink all;
};

KvDirectory BatchJob::kv_directory(const std::string& id) const {
  return KvDirectory(options_.output_directory + "/kv/" + id);
}

Result<void> BatchJob::agree_here(const Result<void>& own) {
  return agree(grid_.world(), own, Deadline::after(options_.layer_timeout));
}

Result<BatchResult> BatchJob::run_prompt(const BatchPrompt& prompt) {
  const auto num_tokens = static_cast<int64_t>(prompt.token_ids.size());
  expect("the first layer");
  auto plan = model::make_head_plan(options_.head_plan, weights_.config, num_tokens,
                                    options_.crossover_tokens, {.min_recall = options_.min_recall});
  if (plan.ok())
    plan = model::plan_for_length(std::move(*plan), num_tokens, device_.info().sparse_cost);
  Result<void> own = plan.ok() ? Result<void>() : plan.error();
  if (own.ok() && options_.save_kv) own = kv_directory(prompt.id).begin();
  MR_RETURN_IF_ERROR(agree_here(own));
  auto result = run_checked(prompt, *plan, engine_.partition(num_tokens));
  if (!result.ok() && options_.save_kv && grid_.is_root()) {
    kv_directory(prompt.id).remove();  // half a cache is worse than none
  }
  return result;
}

Result<BatchJob::Sinks> BatchJob::make_sinks(const BatchPrompt& prompt, int64_t num_rows) {
  Sinks sinks;
  if (options_.save_kv && weights_.shard.kv_replica == 0) {
    const std::string path = kv_directory(prompt.id).rank_file(grid_.world().rank());
    MR_ASSIGN_OR_RETURN(sinks.file, KvFileSink::create(device_, path, weights_, num_rows));
    sinks.all.add(*sinks.file);
  }
  if (prompt.max_tokens > 1) {
    MR_ASSIGN_OR_RETURN(auto retained, RetainSink::create(device_, weights_, num_rows));
    sinks.retained = std::make_unique<RetainSink>(std::move(retained));
    sinks.all.add(*sinks.retained);
  }
  return sinks;
}

Result<BatchResult> BatchJob::run_checked(const BatchPrompt& prompt, const model::HeadPlan& plan,
                                          const Partition& partition) {
  Stopwatch watch;
  // All layers' K and V stay on the device then: nothing of an earlier prompt's may.
  if (prompt.max_tokens > 1) engine_.groups().cp->trim();
  auto sinks = make_sinks(prompt, partition.num_tokens(grid_.cp().rank()));
  MR_RETURN_IF_ERROR(agree_here(sinks.ok() ? Result<void>() : sinks.error()));
  MR_ASSIGN_OR_RETURN(const auto prefilled, prefill(prompt, plan, *sinks));
  MR_RETURN_IF_ERROR(finish_files(prompt, partition, prefilled, *sinks));
  BatchResult result{.num_tokens = partition.num_tokens(),
                     .generated_token_ids = {prefilled.first_token},
                     .top_tokens = prefilled.top_tokens,
                     .probe_token_ids = prefilled.probe_token_ids,
                     .probe_logprobs = prefilled.probe_logprobs,
                     .density = prefilled.density,
                     .recall = prefilled.recall.mean(),
                     .recall_p01 = prefilled.recall.first_percentile(),
                     .dense_for_length = plan.dense_for_length(),
                     .phases = prefilled.phases};
  if (prompt.max_tokens > 1) {
    PhaseTimes::Span span(result.phases, Phase::kGenerate);
    MR_ASSIGN_OR_RETURN(result.generated_token_ids,
                        generate(prompt, prefilled.first_token, *sinks->retained));
  }
  result.finish_reason =
      model::finish_reason(result.generated_token_ids, weights_.config, prompt.ignore_eos);
  result.total_s = watch.elapsed_s();
  return result;
}

Result<PrefillResult> BatchJob::prefill(const BatchPrompt& prompt, const model::HeadPlan& plan,
                                        Sinks& sinks) {
  const auto at_boundary = [this](const LayerReport& report) {
    expect(step_after(report));
    return Result<void>();
  };
  return engine_.prefill({.token_ids = prompt.token_ids,
                          .plan = &plan,
                          .probe_positions = prompt.probe_positions,
                          .probe_target_ids = prompt.probe_target_ids,
                          .sink = sinks.all.empty() ? nullptr : &sinks.all,
                          .at_boundary = at_boundary},
                         options_.layer_timeout);
}

// The manifest says that the files are whole, so all ranks have closed theirs before.
Result<void> BatchJob::finish_files(const BatchPrompt& prompt, const Partition& partition,
                                    const PrefillResult& result, Sinks& sinks) {
  expect("saving the cache");
  MR_RETURN_IF_ERROR(agree_here(sinks.file != nullptr ? sinks.file->close() : Result<void>()));
  if (!options_.save_kv) return {};
  return agree_here(grid_.is_root() ? save_manifest(prompt, partition, result) : Result<void>());
}

Result<std::vector<int32_t>> BatchJob::generate(const BatchPrompt& prompt, int32_t first_token,
                                                const RetainSink& retained) {
  auto generator =
      model::Generator::create(device_, weights_, grid_.tp(), grid_.cp(), prompt.max_tokens);
  MR_RETURN_IF_ERROR(agree_here(generator.ok() ? Result<void>() : generator.error()));
  return generator->generate({.prompt = retained.slabs(),
                              .num_prompt_tokens = std::ssize(prompt.token_ids),
                              .first_token = first_token,
                              .max_tokens = prompt.max_tokens,
                              .ignore_eos = prompt.ignore_eos},
                             [this] {
                               expect("the next token");
                               return Deadline::after(options_.layer_timeout);
                             });
}

Result<void> BatchJob::save_manifest(const BatchPrompt& prompt, const Partition& partition,
                                     const PrefillResult& result) {
  MR_ASSIGN_OR_RETURN(const auto text, kv_manifest_json({.id = prompt.id,
                                                         .num_tokens = partition.num_tokens(),
                                                         .first_token = result.first_token,
                                                         .density = result.density},
                                                        weights_.config, weights_.compute_dtype,
                                                        partition, grid_.shape()));
  return kv_directory(prompt.id).write_manifest(text);
}

}  // namespace millrace::worker
