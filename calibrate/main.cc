// SPDX-License-Identifier: Apache-2.0
// millrace-calibrate: makes a head plan for a model from prompts of its user.
//   millrace-calibrate patterns --model DIR --input prompts.jsonl --output plan.json
//       [--time 0.25] ...
// Runs on one device, without a coordinator or mpirun. Exit status: 0 the plan is written; 2 it is
// not, and the previous file at --output is unchanged.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/calibration.h"
#include "calibrate/plan_table.h"
#include "calibrate/whole_file.h"
#include "comm/local/local_group.h"
#include "common/cli/choice_option.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/logging/init_logging.h"
#include "common/system/mapped_file.h"
#include "engine/ranks/rank_end.h"
#include "engine/runtime/rank_cli.h"
#include "plan/head_plan_writer.h"

namespace millrace::calibrate {

namespace {

constexpr int64_t kMaxCostsBytes = 1 << 16;

enum class PlanFormat { kMillrace, kMInference };

struct Options {
  engine::RankOptions rank;
  CalibrationOptions calibration;
  std::string input_path, output_path, costs_path;
  std::vector<std::string> patterns;
  PlanFormat format = PlanFormat::kMillrace;
};

void add_options(CLI::App& app, Options& options) {
  app.footer(
      "For every layer and query head: of each pattern the largest budget whose time is within\n"
      "--time, and of these the pattern whose output is nearest to dense attention's (mean over\n"
      "prompts and rows of the relative Euclidean distance). Time is that of finding the lists "
      "and\n"
      "attending by them, counted from the blocks of real indices and the costs of kernels on "
      "this\n"
      "device: see --costs. Heads for which nothing is within the budget run densely.\n"
      "The plan is for prompts about as long as those given: see docs/head-plans.md.");
  engine::add_model_options(app, options.rank);
  app.add_option("--input", options.input_path,
                 "prompts, one JSON object per line, as of millrace-batch")
      ->type_name("FILE")
      ->required();
  app.add_option("--output", options.output_path, "the plan, a JSON file for --head-plan")
      ->type_name("FILE")
      ->required();
  app.add_option("--time", options.calibration.search.time,
                 "budget of each head: share of dense attention's time, more than 0, at most 1")
      ->type_name("SHARE")
      ->check([](const std::string& text) {
        double share = 0;
        const bool good = CLI::detail::lexical_cast(text, share) && share > 0 && share <= 1;
        return good ? std::string()
                    : fmt::format("must be a number more than 0, at most 1; not '{}'", text);
      })
      ->capture_default_str();
  app.add_option("--patterns", options.patterns,
                 "what to choose from, with commas between: a-shape, vertical-slash, "
                 "block-sparse, adaptive (default all)")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(CLI::IsMember(
          std::vector<std::string>{"a-shape", "vertical-slash", "block-sparse", "adaptive"}));
  app.add_option("--max-error", options.calibration.search.max_error,
                 "heads whose least error is larger run densely, over the budget (default any "
                 "error is accepted)")
      ->type_name("ERROR")
      ->check(cli::number_range(0.0, 1e6));
  app.add_option("--costs", options.costs_path,
                 "what kernels cost here: read if the file exists, else measured and written; "
                 "with the same file the same plan comes out (default measured)")
      ->type_name("FILE");
  cli::add_choice<PlanFormat>(
      app, "--format", options.format,
      {{"millrace", PlanFormat::kMillrace}, {"minference", PlanFormat::kMInference}},
      "of the plan; minference has no adaptive and no dense heads, and is refused where one was "
      "chosen: leave them out with --patterns");
}

std::vector<plan::Pattern> patterns_of(const std::vector<std::string>& names) {
  std::vector<plan::Pattern> patterns;
  for (const plan::Pattern pattern : kSearchedPatterns) {
    for (const auto& name : names) {
      if (name != plan::pattern_name(pattern)) continue;
      patterns.push_back(pattern);
      break;
    }
  }
  return patterns;
}

Result<std::optional<KernelCosts>> read_costs(const std::string& path) {
  if (path.empty() || ::access(path.c_str(), F_OK) != 0) return std::optional<KernelCosts>();
  MR_ASSIGN_OR_RETURN(const auto text, read_text_file(path, kMaxCostsBytes));
  const auto costs = parse_costs(text);
  if (!costs.ok()) return error(costs.error().code, "costs {}: {}", path, costs.error().message);
  return std::optional(*costs);
}

Result<std::string> plan_text(const Calibration& calibration, PlanFormat format) {
  const auto plan = calibration.plan();
  if (format == PlanFormat::kMillrace) return plan::plan_json(plan);
  std::vector<double> scores;
  for (const auto& head : calibration.heads) scores.push_back(std::max(1 - head.error, 0.0));
  return plan::minference_plan_json(plan, scores);
}

// MInference's plans have no dense heads, but heads of layers with sliding windows are dense.
Result<void> check_format(PlanFormat format, const model::ModelConfig& config) {
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (format != PlanFormat::kMInference || config.window(layer) == 0) continue;
    return error(Errc::kUnsupported,
                 "--format minference: layer {} has a sliding window, and the format no heads that "
                 "are not searched",
                 layer);
  }
  return {};
}

// Percents, on a terminal.
std::function<void(double)> progress() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [last = -1](double done) mutable {
    const int percent = static_cast<int>(done * 100);
    if (percent == last) return;
    last = percent;
    fmt::print(stderr, "\r{:3d} %{}", percent, done >= 1 - 1e-9 ? "\r     \r" : "");
    std::fflush(stderr);
  };
}

Result<void> run(Options& options) {
  Stopwatch watch;
  MR_RETURN_IF_ERROR(check_writable(options.output_path));
  MR_ASSIGN_OR_RETURN(options.calibration.costs, read_costs(options.costs_path));
  const bool writes_costs = !options.costs_path.empty() && !options.calibration.costs;
  if (writes_costs) MR_RETURN_IF_ERROR(check_writable(options.costs_path));
  if (!options.patterns.empty()) options.calibration.patterns = patterns_of(options.patterns);

  options.rank.crossover_tokens = 0;  // of plans that this program does not run
  options.rank.engine.end_process = engine::end_rank;
  auto world = comm::LocalGroup::create(1);
  MR_ASSIGN_OR_RETURN(const auto runtime,
                      engine::RankRuntime::create(std::move(world.front()), options.rank));
  MR_RETURN_IF_ERROR(check_format(options.format, runtime->weights().config));
  MR_ASSIGN_OR_RETURN(const auto prompts, read_prompts(options.input_path, runtime->limits()));
  const auto device = runtime->device().info().name;
  if (options.calibration.costs && options.calibration.costs->device != device) {
    log::warn("costs {} are of {}; this is {}", options.costs_path,
              options.calibration.costs->device, device);
  }
  options.calibration.progress = progress();
  MR_ASSIGN_OR_RETURN(const auto calibration, calibrate(*runtime, prompts, options.calibration));
  if (writes_costs) {
    MR_RETURN_IF_ERROR(write_whole(options.costs_path, costs_json(calibration.costs)));
  }
  MR_ASSIGN_OR_RETURN(const auto text, plan_text(calibration, options.format));
  MR_RETURN_IF_ERROR(write_whole(options.output_path, text));

  int64_t num_tokens = 0;
  for (const auto& prompt : prompts) num_tokens += std::ssize(prompt);
  fmt::print(
      "{}\n{}: budget {} of dense attention's time on {}, {} prompts of {} tokens, {:.0f} s\n",
      plan_table(calibration), options.output_path, options.calibration.search.time, device,
      prompts.size(), num_tokens, watch.elapsed_s());
  return {};
}

}  // namespace

}  // namespace millrace::calibrate

int main(int argc, char** argv) {
  using namespace millrace;
  calibrate::Options options;
  CLI::App app("Makes a head plan for a model from prompts of its user.", "millrace-calibrate");
  app.formatter(std::make_shared<cli::HelpFormatter>());
  app.set_version_flag("--version", MILLRACE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  auto* patterns = app.add_subcommand(
      "patterns",
      "Searches each head's pattern, at equal time the one nearest to dense attention:\n"
      "  millrace-calibrate patterns --model DIR --input prompts.jsonl --output plan.json");
  calibrate::add_options(*patterns, options);
  if (const auto status = cli::parse(app, argc, argv)) return *status;
  init_logging("calibrate");
  try {
    const auto done = engine::or_end_rank([&] { return calibrate::run(options); });
    if (done.ok()) return 0;
    log::error("{}", done.error().to_string());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace-calibrate: %s\n", e.what());
  }
  return 2;
}
