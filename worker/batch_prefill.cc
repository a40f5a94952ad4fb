// One prompt of a batch job, on all ranks: prefill, its KV files, generation.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "model/generator.h"
#include "model/plan_for_length.h"
#include "worker/agreement.h"
#include "worker/batch_job.h"
#include "worker/fan_out_sink.h"
#include "worker/kv_files.h"

namespace millrace::worker {

namespace fs = std::filesystem;

namespace {

Result<void> write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return error(Errc::kIo, "{}: write: {}", path, std::strerror(errno));
  return {};
}

std::string step_after(const LayerReport& report) {
  if (report.layer + 1 == report.num_layers) return "the logits";
  return fmt::format("layer {} of {}", report.layer + 2, report.num_layers);
}

}  // namespace

std::string BatchJob::kv_directory(const std::string& id) const {
  return options_.output_directory + "/kv/" + id;
}

Result<BatchResult> BatchJob::run_prompt(const BatchPrompt& prompt) {
  const auto num_tokens = static_cast<int64_t>(prompt.token_ids.size());
  expect("the first layer");
  auto plan = model::make_head_plan(options_.head_plan, weights_.config, num_tokens,
                                    options_.crossover_tokens);
  if (plan.ok()) plan = model::plan_for_length(std::move(*plan), num_tokens);
  Result<void> own = plan.ok() ? Result<void>() : plan.error();
  if (own.ok() && options_.save_kv) {
    std::error_code status;
    fs::create_directories(kv_directory(prompt.id), status);
    if (status) own = error(Errc::kIo, "{}: {}", kv_directory(prompt.id), status.message());
  }
  MR_RETURN_IF_ERROR(agree(grid_.world(), own, Deadline::after(options_.layer_timeout)));
  auto result = run_checked(prompt, *plan, engine_.partition(num_tokens));
  if (!result.ok() && options_.save_kv && grid_.is_root()) {
    std::error_code ignored;
    fs::remove_all(kv_directory(prompt.id), ignored);  // half a cache is worse than none
  }
  return result;
}

Result<BatchResult> BatchJob::run_checked(const BatchPrompt& prompt, const model::HeadPlan& plan,
                                          const Partition& partition) {
  Stopwatch watch;
  auto& world = grid_.world();
  FanOutSink sinks;
  std::unique_ptr<KvFileSink> file;
  std::optional<RetainSink> retained;
  Result<void> own;
  if (options_.save_kv && weights_.shard.kv_replica == 0) {
    auto created =
        KvFileSink::create(device_, kv_directory(prompt.id) + "/" + kv_file_name(world.rank()),
                           weights_, partition.num_tokens(grid_.cp().rank()));
    if (created.ok()) {
      file = std::move(*created);
      sinks.add(*file);
    } else {
      own = created.error();
    }
  }
  if (prompt.max_tokens > 1) {
    // All layers' K and V stay on the device: nothing of an earlier prompt's may.
    engine_.groups().cp->trim();
    auto created = RetainSink::create(device_, weights_, partition.num_tokens(grid_.cp().rank()));
    if (created.ok()) {
      sinks.add(retained.emplace(std::move(*created)));
    } else if (own.ok()) {
      own = created.error();
    }
  }
  MR_RETURN_IF_ERROR(agree(world, own, Deadline::after(options_.layer_timeout)));

  MR_ASSIGN_OR_RETURN(const auto prefill,
                      engine_.prefill({.token_ids = prompt.token_ids,
                                       .plan = &plan,
                                       .probe_positions = prompt.probe_positions,
                                       .sink = sinks.empty() ? nullptr : &sinks,
                                       .at_boundary =
                                           [this](const LayerReport& report) {
                                             expect(step_after(report));
                                             return Result<void>();
                                           }},
                                      options_.layer_timeout));
  expect("saving the cache");
  if (file != nullptr) own = file->close();
  if (own.ok() && options_.save_kv && grid_.is_root()) {
    own = save_manifest(prompt, partition, prefill);
  }
  MR_RETURN_IF_ERROR(agree(world, own, Deadline::after(options_.layer_timeout)));

  BatchResult result{.num_tokens = partition.num_tokens(),
                     .generated_token_ids = {prefill.first_token},
                     .top_tokens = prefill.top_tokens,
                     .probe_token_ids = prefill.probe_token_ids,
                     .density = prefill.density,
                     .recall = prefill.recall,
                     .phases = prefill.phases};
  if (prompt.max_tokens > 1) {
    PhaseTimes::Span span(result.phases, Phase::kGenerate);
    MR_ASSIGN_OR_RETURN(result.generated_token_ids,
                        generate(prompt, prefill.first_token, *retained));
  }
  result.total_s = watch.elapsed_s();
  return result;
}

Result<std::vector<int32_t>> BatchJob::generate(const BatchPrompt& prompt, int32_t first_token,
                                                const RetainSink& retained) {
  auto generator =
      model::Generator::create(device_, weights_, grid_.tp(), grid_.cp(), prompt.max_tokens);
  MR_RETURN_IF_ERROR(agree(grid_.world(), generator.ok() ? Result<void>() : generator.error(),
                           Deadline::after(options_.layer_timeout)));
  return generator->generate({.prompt = retained.slabs(),
                              .num_prompt_tokens = std::ssize(prompt.token_ids),
                              .first_token = first_token,
                              .max_tokens = prompt.max_tokens},
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
  return write_text(kv_directory(prompt.id) + "/manifest.json", text);
}

}  // namespace millrace::worker
