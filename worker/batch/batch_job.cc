#include "worker/batch/batch_job.h"

#include <filesystem>
#include <utility>

#include "worker/batch/progress_bar.h"
#include "worker/ranks/command_channel.h"

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

Error repeated_id(const std::string& id) {
  return Error(Errc::kInvalidArgument,
               fmt::format("id '{}' was used by an earlier line of the input", id));
}

// Never the file that the results go to, whatever it is called.
Result<std::unique_ptr<InputLines>> open_input(const BatchOptions& options) {
  const std::string& path = options.input_path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return error(Errc::kInvalidArgument, "--input {} is a directory", path);
  const std::string results_path = BatchResults::path_in(options.output_directory);
  if (fs::equivalent(path, results_path, ignored)) {
    return error(Errc::kInvalidArgument, "--input {} is what the results go to, {}", path,
                 results_path);
  }
  return InputLines::open(path, options.max_line_bytes);
}

BatchPrompt from_command(const protocol::RunPrompt& run) {
  BatchPrompt prompt{.id = run.request_id(),
                     .max_tokens = static_cast<int32_t>(run.max_tokens()),
                     .ignore_eos = run.ignore_eos()};
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
  run.set_ignore_eos(prompt.ignore_eos);
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
    expect("waiting for the next prompt", 2 * command_timeout());
    const auto command = share_command(grid_.world(), {}, Deadline::after(command_timeout()));
    if (!command.ok()) return error(Errc::kPeerLost, "{}", command.error().message);
    if (command->stop()) return {};
    if (!command->has_run()) continue;
    const auto result = run_prompt(from_command(command->run()));
    if (!result.ok()) MR_RETURN_IF_ERROR(meet_after(result.error()));
  }
}

Result<BatchSummary> BatchJob::lead() {
  MR_ASSIGN_OR_RETURN(const auto input, open_input(options_));
  MR_ASSIGN_OR_RETURN(auto results, BatchResults::open({.directory = options_.output_directory,
                                                        .resume = options_.resume}));
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
    MR_RETURN_IF_ERROR(run_line(*line, results, summary));
    bar.update(bytes_read, fmt::format("{} done, {} failed", summary.num_ok, summary.num_failed));
    // Who writes the input may take as long as it takes.
    if (watch_ != nullptr) watch_->expect_nothing();
  }
  bar.finish();
  summary.total_s = watch.elapsed_s();
  return summary;
}

// The other ranks wait for a command, and take rank 0 for lost when none comes.
Result<std::optional<InputLine>> BatchJob::next_line(InputLines& input) {
  auto line = input.next(Deadline::after(kCommandInterval));
  if (!line.ok() || line->has_value() || input.at_end()) return line;
  const auto shared = share_command(grid_.world(), {}, Deadline::after(command_timeout()));
  if (!shared.ok()) return error(Errc::kPeerLost, "{}", shared.error().message);
  return line;
}

Result<void> BatchJob::run_line(const InputLine& line, BatchResults& results,
                                BatchSummary& summary) {
  std::string id = batch_prompt_id(line.text);
  const std::string line_id = fmt::format("line-{}", line.number);
  if (id.empty()) id = line_id;
  // The second of them goes by its number: the line that its id has says how the first one went.
  if (!seen_ids_.insert(id).second) {
    ++summary.num_failed;
    return results.append(batch_error_line(line_id, repeated_id(id)), line.number);
  }
  if (results.has(id)) {
    ++summary.num_done_before;
    return {};
  }
  const auto prompt = admit(line);
  const auto result = prompt.ok() ? lead_prompt(*prompt) : Result<BatchResult>(prompt.error());
  if (prompt.ok() && !result.ok()) MR_RETURN_IF_ERROR(meet_after(result.error()));
  if (!result.ok()) {
    ++summary.num_failed;
    return results.append(batch_error_line(id, result.error()), line.number);
  }
  ++summary.num_ok;
  summary.num_tokens += result->num_tokens;
  return results.append(batch_result_line(id, *result), line.number);
}

Result<BatchPrompt> BatchJob::admit(const InputLine& line) {
  if (line.num_bytes > options_.max_line_bytes) {
    return error(Errc::kTooLarge, "line of {} bytes, limit {}", line.num_bytes,
                 options_.max_line_bytes);
  }
  MR_ASSIGN_OR_RETURN(auto prompt, parse_batch_prompt(line.text));
  MR_RETURN_IF_ERROR(check_prompt(prompt.token_ids, limits_));
  if (const auto known = check_token_ids(prompt.probe_target_ids, limits_.vocab_size);
      !known.ok()) {
    return error(known.error().code, "probe_target_ids: {}", known.error().message);
  }
  if (options_.save_kv && !is_file_name(prompt.id)) {
    return error(Errc::kInvalidArgument,
                 "id '{}' cannot name a directory; letters, digits, '.', '_' and '-' can",
                 prompt.id);
  }
  return prompt;
}

Result<BatchResult> BatchJob::lead_prompt(const BatchPrompt& prompt) {
  MR_RETURN_IF_ERROR(
      share_command(grid_.world(), to_command(prompt), Deadline::after(options_.layer_timeout)));
  return run_prompt(prompt);
}

// What fails for the sake of one prompt fails on all ranks at the same point, and they meet
// afterwards. Ranks that cannot meet are no group any more, whatever went wrong first.
Result<void> BatchJob::meet_after(const Error& failure) {
  expect("meeting after a prompt that failed");
  if (failure.code != Errc::kPeerLost &&
      grid_.world().barrier(Deadline::after(options_.layer_timeout)).ok()) {
    return {};
  }
  return error(Errc::kPeerLost, "{}", failure.message);
}

// Rank 0, idle, lets the others wait for kCommandInterval; it may also be reading a long line or
// writing results.
Duration BatchJob::command_timeout() const {
  return std::max<Duration>(4 * kCommandInterval, options_.layer_timeout);
}

// Every wait of the host within a step has the layer timeout; those of a GPU for its peers may have
// none.
void BatchJob::expect(const std::string& step) {
  expect(step, 2 * options_.layer_timeout);
}

// A single rank on a CPU waits for nobody and may take its time.
void BatchJob::expect(const std::string& step, Duration allowed) {
  const bool waits = grid_.world().size() > 1 || !device_.info().host_memory;
  if (watch_ != nullptr && waits) watch_->expect_step(step, allowed);
}

}  // namespace millrace::worker
