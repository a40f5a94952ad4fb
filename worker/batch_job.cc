#include "worker/batch_job.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "model/generator.h"
#include "model/plan_for_length.h"
#include "worker/agreement.h"
#include "worker/command_channel.h"
#include "worker/fan_out_sink.h"
#include "worker/kv_files.h"
#include "worker/progress_bar.h"
#include "worker/retain_sink.h"

namespace millrace::worker {

namespace fs = std::filesystem;

namespace {

// An id names a directory when KV is saved.
bool is_file_name(const std::string& id) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  return !id.empty() && id.size() <= 200 && id.front() != '.' &&
         std::all_of(id.begin(), id.end(), allowed);
}

Result<void> write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return error(Errc::kIo, "{}: write: {}", path, std::strerror(errno));
  return {};
}

BatchPrompt from_command(const protocol::RunPrompt& run) {
  BatchPrompt prompt{.id = run.request_id(), .max_tokens = static_cast<int32_t>(run.max_tokens())};
  auto token_ids = decode_token_ids(run.prompt_token_ids());
  MR_CHECK(token_ids.ok(), "rank 0 sent {} bytes of tokens", run.prompt_token_ids().size());
  prompt.token_ids = std::move(*token_ids);
  prompt.probe_positions.assign(run.probe_positions().begin(), run.probe_positions().end());
  return prompt;
}

protocol::GroupCommand to_command(const BatchPrompt& prompt) {
  protocol::GroupCommand command;
  auto& run = *command.mutable_run();
  run.set_request_id(prompt.id);
  run.set_prompt_token_ids(encode_token_ids(prompt.token_ids));
  run.set_max_tokens(static_cast<uint32_t>(prompt.max_tokens));
  for (const int64_t p : prompt.probe_positions) run.add_probe_positions(static_cast<uint64_t>(p));
  return command;
}

}  // namespace

Result<BatchSummary> BatchJob::run() {
  if (!grid_.is_root()) {
    MR_RETURN_IF_ERROR(follow());
    return BatchSummary{};
  }
  auto summary = lead();
  protocol::GroupCommand stop;
  stop.set_stop(true);
  // Also after an error of rank 0 alone, so that the others end as well.
  const auto shared = share_command(grid_.world(), stop, Deadline::after(kCommandTimeout));
  if (summary.ok() && !shared.ok()) return shared.error();
  return summary;
}

Result<void> BatchJob::follow() {
  while (true) {
    // Rank 0 may be reading a long line or writing results: minutes, not seconds.
    MR_ASSIGN_OR_RETURN(const auto command,
                        share_command(grid_.world(), {}, Deadline::after(options_.layer_timeout)));
    if (command.stop()) return {};
    const auto result = run_prompt(from_command(command.run()));
    if (!result.ok() && result.error().code == Errc::kPeerLost) return result.error();
  }
}

Result<BatchSummary> BatchJob::lead() {
  std::ifstream input(options_.input_path);
  if (!input) {
    return error(Errc::kIo, "{}: open: {}", options_.input_path, std::strerror(errno));
  }
  std::error_code status;
  fs::create_directories(options_.output_directory, status);
  const std::string results_path = options_.output_directory + "/results.jsonl";
  std::ofstream results(results_path, std::ios::binary | std::ios::trunc);
  if (!results) return error(Errc::kIo, "{}: open: {}", results_path, std::strerror(errno));

  ProgressBar bar(options_.show_progress);
  bar.start(static_cast<int64_t>(fs::file_size(options_.input_path, status)));
  BatchSummary summary;
  Stopwatch watch;
  std::string line;
  int64_t line_number = 0;
  int64_t bytes_read = 0;
  while (std::getline(input, line)) {
    ++line_number;
    bytes_read += static_cast<int64_t>(line.size()) + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string id = batch_prompt_id(line);
    if (id.empty()) id = fmt::format("line-{}", line_number);
    const auto prompt = admit(line);
    Result<BatchResult> result = prompt.ok() ? run_prompt(*prompt) : prompt.error();
    if (!result.ok() && result.error().code == Errc::kPeerLost) return result.error();
    if (result.ok()) {
      ++summary.num_ok;
      summary.num_tokens += result->num_tokens;
    } else {
      ++summary.num_failed;
    }
    results << (result.ok() ? batch_result_line(id, *result)
                            : batch_error_line(id, result.error()));
    results.flush();
    if (!results) {
      return error(Errc::kIo, "{}: write of line {}: {}", results_path, line_number,
                   std::strerror(errno));
    }
    bar.update(bytes_read, fmt::format("{} done, {} failed", summary.num_ok, summary.num_failed));
  }
  bar.finish();
  summary.total_s = watch.elapsed_s();
  return summary;
}

Result<BatchPrompt> BatchJob::admit(const std::string& line) {
  if (static_cast<int64_t>(line.size()) > kMaxBatchLineBytes) {
    return error(Errc::kTooLarge, "line of {} bytes, limit {}", line.size(), kMaxBatchLineBytes);
  }
  MR_ASSIGN_OR_RETURN(auto prompt, parse_batch_prompt(line));
  MR_RETURN_IF_ERROR(check_prompt(prompt.token_ids, limits_));
  if (options_.save_kv) {
    if (!is_file_name(prompt.id)) {
      return error(Errc::kInvalidArgument,
                   "id '{}' cannot name a directory; letters, digits, '.', '_' and '-' can",
                   prompt.id);
    }
    if (!seen_ids_.insert(prompt.id).second) {
      return error(Errc::kInvalidArgument, "id '{}' was used before; its KV would be overwritten",
                   prompt.id);
    }
  }
  MR_RETURN_IF_ERROR(
      share_command(grid_.world(), to_command(prompt), Deadline::after(options_.layer_timeout)));
  return prompt;
}

std::string BatchJob::kv_directory(const std::string& id) const {
  return options_.output_directory + "/kv/" + id;
}

Result<BatchResult> BatchJob::run_prompt(const BatchPrompt& prompt) {
  const auto num_tokens = static_cast<int64_t>(prompt.token_ids.size());
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
                                       .sink = sinks.empty() ? nullptr : &sinks},
                                      options_.layer_timeout));
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
    MR_ASSIGN_OR_RETURN(auto generator, model::Generator::create(device_, weights_, grid_.tp(),
                                                                 grid_.cp(), prompt.max_tokens));
    MR_ASSIGN_OR_RETURN(result.generated_token_ids,
                        generator.generate({.prompt = retained->slabs(),
                                            .num_prompt_tokens = partition.num_tokens(),
                                            .first_token = prefill.first_token,
                                            .max_tokens = prompt.max_tokens},
                                           Deadline::after(options_.layer_timeout)));
  }
  result.total_s = watch.elapsed_s();
  return result;
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
