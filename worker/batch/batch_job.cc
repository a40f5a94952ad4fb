// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_job.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>

#include "common/checksum.h"
#include "common/log.h"
#include "worker/batch/batch_command.h"
#include "worker/batch/batch_prompt_run.h"
#include "worker/batch/progress_bar.h"
#include "worker/sync/command_channel.h"

namespace millrace::worker {

namespace fs = std::filesystem;

namespace {

// Refuses the file to which the results go, whatever its name.
Result<std::unique_ptr<InputLines>> open_input(const BatchOptions& options) {
  const std::string& path = options.input_path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return error(Errc::kInvalidArgument, "--input {} is a directory", path);
  const std::string results_path = BatchResults::path_in(options.output_directory);
  if (fs::equivalent(path, results_path, ignored)) {
    return error(Errc::kInvalidArgument, "--input {} is also the file that results go to, {}", path,
                 results_path);
  }
  return InputLines::open(path, options.max_line_bytes);
}

// Rank 0, when idle, makes the others wait for kCommandInterval. It may also be reading a long line
// or writing results.
SyncTimeouts timeouts_of(const BatchOptions& options) {
  return {.command = std::max<Duration>(4 * kCommandInterval, options.layer_timeout),
          .layer = options.layer_timeout};
}

// The checksum tells a plan's file from another one of the same name.
std::string head_plan_of(const BatchOptions& options) {
  std::error_code ignored;
  if (!fs::is_regular_file(options.head_plan, ignored)) return options.head_plan;
  std::ifstream file(options.head_plan, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return fmt::format("{} ({:016x})", options.head_plan, checksum(std::as_bytes(std::span(text))));
}

// The grid and the device are not among them: results agree up to rounding.
BatchRecord::Settings settings_of(const BatchOptions& options, const BatchResources& resources) {
  const auto& weights = resources.weights;
  return {{"--model (fingerprint)", weights.fingerprint},
          {"--head-plan", head_plan_of(options)},
          {"--min-recall", fmt::format("{}", options.min_recall)},
          {"--dtype", options.dtype},
          {"--quantization", fmt::format("{}", static_cast<int>(weights.quantization))},
          {"--kv-cache-dtype", resources.kv_scales != nullptr ? "fp8" : "auto"},
          {"--kv", options.save_kv ? "save" : "none"},
          {"--kv-budget", fmt::format("{}", options.kv_budget)},
          {"--kv-budget-tokens", fmt::format("{}", options.kv_budget_tokens)},
          {"--recall-by-head", options.recall_by_head ? "yes" : "no"}};
}

}  // namespace

BatchJob::BatchJob(const BatchResources& resources, const BatchOptions& options)
    : resources_(resources),
      options_(options),
      sync_(resources_.grid.world(), resources_.watch,
            /*may_hang=*/!resources_.device.info().host_memory, timeouts_of(options)),
      text_(options.tokenizer_directory, options.tokenizer_python, resources_.limits.vocab_size),
      admission_(resources_.limits, options, text_) {}

Result<BatchSummary> BatchJob::run() {
  if (!sync_.is_root()) {
    MR_RETURN_IF_ERROR(follow());
    return BatchSummary{};
  }
  auto summary = lead();
  protocol::GroupCommand stop;
  stop.set_stop(true);
  // Also sent after an error of rank 0 alone, so that the others end as well.
  const auto shared = broadcast_command(sync_.world(), stop, Deadline::after(kCommandTimeout));
  if (summary.ok() && !shared.ok()) return shared.error();
  return summary;
}

Result<void> BatchJob::follow() {
  while (true) {
    sync_.expect("waiting for the next prompt", 2 * sync_.timeouts().command);
    MR_ASSIGN_OR_RETURN(const auto command, sync_.broadcast_command({}));
    if (command.stop()) return {};
    if (!command.has_run()) continue;
    const auto result = run_prompt(from_command(command.run()));
    if (!result.ok()) MR_RETURN_IF_ERROR(meet_after(result.error()));
  }
}

Result<BatchSummary> BatchJob::lead() {
  MR_ASSIGN_OR_RETURN(const auto input, open_input(options_));
  MR_ASSIGN_OR_RETURN(auto results, BatchResults::open({.directory = options_.output_directory,
                                                        .resume = options_.resume}));
  KvDirectory::remove_unfinished(options_.output_directory + "/kv");
  const std::string record_path = BatchRecord::path_in(options_.output_directory);
  const auto settings = settings_of(options_, resources_);
  auto record = options_.resume && results.num_earlier() > 0
                    ? BatchRecord::resume(record_path, settings)
                    : BatchRecord::begin(record_path, settings);
  if (!record.ok()) return record.error();
  std::error_code status;
  ProgressBar bar(options_.show_progress);
  bar.start(static_cast<int64_t>(fs::file_size(options_.input_path, status)));
  BatchSummary summary;
  Stopwatch watch;
  int64_t bytes_read = 0;
  while (!input->at_end()) {
    MR_ASSIGN_OR_RETURN(const auto line, next_line(*input));
    if (!line) continue;
    bytes_read += line->num_bytes + 1;
    const bool blank = line->text.find_first_not_of(" \t\r") == std::string::npos;
    if (blank && line->num_bytes <= options_.max_line_bytes) continue;
    MR_RETURN_IF_ERROR(run_line(*line, results, *record, summary));
    bar.update(bytes_read, fmt::format("{} done, {} failed", summary.num_ok, summary.num_failed));
    // Whoever writes the input may take any time.
    sync_.expect_nothing();
  }
  bar.finish();
  summary.total_s = watch.elapsed_s();
  return summary;
}

// The other ranks wait for a command, and treat rank 0 as lost when none comes.
Result<std::optional<InputLine>> BatchJob::next_line(InputLines& input) {
  auto line = input.next(Deadline::after(kCommandInterval));
  if (!line.ok() || line->has_value() || input.at_end()) return line;
  MR_RETURN_IF_ERROR(sync_.broadcast_command({}));
  return line;
}

Result<void> BatchJob::run_line(const InputLine& line, BatchResults& results, BatchRecord& record,
                                BatchSummary& summary) {
  const auto claimed = admission_.claim_id(line);
  if (!claimed.ok()) {
    ++summary.num_failed;
    return results.append(batch_error_line(line_id(line), claimed.error()), line.number);
  }
  const std::string& id = *claimed;
  if (results.has(id)) {
    MR_RETURN_IF_ERROR(record.check(id, line.text, line.number));
    ++summary.num_done_before;
    return {};
  }
  // New prompts stand behind those of the earlier job.
  if (!results.knows(id) && summary.num_done_before < results.num_done()) {
    return error(
        Errc::kInvalidArgument,
        "--resume: line {} of --input, '{}', is new, and {} results are of prompts that do "
        "not stand before it; use another --output",
        line.number, id, results.num_done() - summary.num_done_before);
  }
  MR_RETURN_IF_ERROR(record.note(id, line.text));
  const auto prompt = admission_.admit(line);
  auto result = prompt.ok() ? lead_prompt(*prompt) : Result<BatchResult>(prompt.error());
  if (prompt.ok() && !result.ok()) MR_RETURN_IF_ERROR(meet_after(result.error()));
  if (!result.ok()) {
    ++summary.num_failed;
    return results.append(batch_error_line(id, result.error()), line.number);
  }
  if (prompt->text) {
    auto text = text_.read(prompt->token_ids, result->generated_token_ids);
    if (text.ok()) {
      result->generated_text = *std::move(text);
    } else {
      log::warn("prompt '{}': no text: {}", id, text.error().message);
    }
  }
  ++summary.num_ok;
  summary.num_tokens += result->num_tokens;
  return results.append(batch_result_line(id, *result), line.number);
}

Result<BatchResult> BatchJob::lead_prompt(const BatchPrompt& prompt) {
  MR_RETURN_IF_ERROR(broadcast_command(sync_.world(), to_command(prompt),
                                       Deadline::after(options_.layer_timeout)));
  return run_prompt(prompt);
}

Result<BatchResult> BatchJob::run_prompt(const BatchPrompt& prompt) {
  return BatchPromptRun(resources_, options_, sync_, prompt).run();
}

Result<void> BatchJob::meet_after(const Error& failure) {
  sync_.expect("synchronising after a failed prompt", 2 * options_.layer_timeout);
  return sync_.meet_after(failure, options_.layer_timeout);
}

}  // namespace millrace::worker
