// SPDX-License-Identifier: Apache-2.0
#include "calibrate/calibration.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "calibrate/layer_trial.h"
#include "calibrate/measure_costs.h"
#include "engine/runtime/prompt.h"
#include "worker/batch/batch_prompt.h"
#include "worker/batch/input_lines.h"

namespace millrace::calibrate {

namespace {

using Prompts = std::vector<std::vector<int32_t>>;
using Look = std::function<Result<void>(int32_t layer, LayerTrial& trial)>;

constexpr std::chrono::minutes kLayerTimeout{30};

AttentionShape shape_of(const model::ModelWeights& weights) {
  return {.num_query_heads = weights.config.num_query_heads,
          .num_kv_heads = weights.config.num_kv_heads,
          .head_dim = weights.config.head_dim,
          .dtype = weights.compute_dtype};
}

std::string text_of(const AttentionShape& shape) {
  return fmt::format("{} query heads on {} kv heads of {} in {}", shape.num_query_heads,
                     shape.num_kv_heads, shape.head_dim, dtype_name(shape.dtype));
}

Result<KernelCosts> costs_of(engine::RankRuntime& runtime, int64_t num_tokens,
                             const CalibrationOptions& options) {
  const auto shape = shape_of(runtime.weights());
  if (!options.costs) {
    return measure_costs(runtime.device(), *runtime.engine().groups().cp, shape, num_tokens);
  }
  if (options.costs->shape == shape) return *options.costs;
  return error(Errc::kInvalidArgument, "costs of {}; the model has {}",
               text_of(options.costs->shape), text_of(shape));
}

std::vector<plan::HeadPattern> widest_of(const std::vector<Ladder>& ladders) {
  std::vector<plan::HeadPattern> widest;
  for (const Ladder& ladder : ladders) {
    // For vertical-slash, the last rung has both the widest columns and the widest slashes.
    widest.push_back(ladder.back());
  }
  return widest;
}

class Passes {
 public:
  Passes(engine::RankRuntime& runtime, const Prompts& prompts, const std::vector<Ladder>& ladders,
         const std::function<void(double)>& progress)
      : runtime_(runtime),
        prompts_(prompts),
        widest_(widest_of(ladders)),
        dense_(runtime.weights().config.num_layers, runtime.weights().config.num_query_heads, {}),
        progress_(progress) {
    for (const auto& prompt : prompts) total_ += 2 * work_of(prompt);
  }

  // A dense prefill of each prompt, which looks at each of its layers.
  Result<void> run(const Look& look) {
    for (const auto& prompt : prompts_) {
      MR_RETURN_IF_ERROR(run_prompt(prompt, look));
    }
    return {};
  }

 private:
  static double work_of(const std::vector<int32_t>& prompt) {
    const auto tokens = static_cast<double>(prompt.size());
    return tokens * tokens;
  }

  Result<void> run_prompt(const std::vector<int32_t>& prompt, const Look& look) {
    MR_ASSIGN_OR_RETURN(
        const auto trial,
        LayerTrial::create(runtime_.device(), *runtime_.engine().groups().cp,
                           shape_of(runtime_.weights()), std::ssize(prompt), widest_));
    Result<void> looked;
    const auto& weights = runtime_.weights();
    const auto tap = [&](const engine::BuiltIndex& built) {
      if (weights.config.window(built.layer) == 0) {
        const float* sinks = weights.layers[static_cast<size_t>(built.layer)].sinks;
        if (looked.ok()) looked = trial->take(built.queries, built.kv, sinks);
        if (looked.ok()) looked = look(built.layer, *trial);
      }
      done_ += work_of(prompt) / dense_.num_layers();
      if (progress_) progress_(done_ / total_);
    };
    // An error in a layer ends the prompt with that error.
    const auto at_boundary = [&](const engine::LayerReport&) { return looked; };
    const auto result = runtime_.engine().prefill(
        {.token_ids = prompt, .plan = &dense_, .index_tap = tap, .at_boundary = at_boundary},
        kLayerTimeout);
    if (!result.ok()) return result.error();
    return {};
  }

  engine::RankRuntime& runtime_;
  const Prompts& prompts_;
  std::vector<plan::HeadPattern> widest_;
  plan::HeadPlan dense_;
  const std::function<void(double)>& progress_;
  double done_ = 0;
  double total_ = 0;
};

Result<std::vector<int32_t>> read_prompt(const worker::InputLine& line,
                                         const engine::PromptLimits& limits) {
  if (line.num_bytes > worker::kMaxBatchLineBytes) {
    return error(Errc::kTooLarge, "line of {} bytes, limit {}", line.num_bytes,
                 worker::kMaxBatchLineBytes);
  }
  MR_ASSIGN_OR_RETURN(auto prompt, worker::parse_batch_prompt(line.text));
  if (prompt.text) {
    return error(Errc::kUnsupported, "the prompt is text; a calibration takes prompt_token_ids");
  }
  MR_RETURN_IF_ERROR(engine::check_prompt(prompt.token_ids, limits));
  const int64_t num_tokens = std::ssize(prompt.token_ids);
  if (kernels::first_dense_position(num_tokens) == 0) {
    return error(Errc::kInvalidArgument, "{} tokens: all of them run densely under every plan",
                 num_tokens);
  }
  return std::move(prompt.token_ids);
}

}  // namespace

plan::HeadPlan Calibration::plan() const {
  plan::HeadPlan plan(num_layers, num_heads, {});
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t head = 0; head < num_heads; ++head) {
      plan.at(layer, head) = at(layer, head).pattern;
    }
  }
  return plan;
}

Result<Prompts> read_prompts(const std::string& path, const engine::PromptLimits& limits) {
  MR_ASSIGN_OR_RETURN(const auto lines, worker::InputLines::open(path, worker::kMaxBatchLineBytes));
  Prompts prompts;
  while (!lines->at_end()) {
    MR_ASSIGN_OR_RETURN(const auto line, lines->next(Deadline::after(std::chrono::minutes(1))));
    if (!line) continue;
    const bool blank = line->text.find_first_not_of(" \t\r") == std::string::npos;
    if (blank && line->num_bytes <= worker::kMaxBatchLineBytes) continue;
    auto prompt = read_prompt(*line, limits);
    if (!prompt.ok()) {
      return error(prompt.error().code, "{}, line {}: {}", path, line->number,
                   prompt.error().message);
    }
    prompts.push_back(std::move(*prompt));
  }
  if (prompts.empty()) return error(Errc::kInvalidArgument, "{}: no prompts", path);
  return prompts;
}

Result<Calibration> calibrate(engine::RankRuntime& runtime, const Prompts& prompts,
                              const CalibrationOptions& options) {
  const auto& config = runtime.weights().config;
  std::vector<int64_t> windows;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    windows.push_back(config.window(layer));
  }
  if (std::ranges::count(windows, 0) == 0) {
    return error(
        Errc::kUnsupported,
        "every layer has a sliding window, which its heads attend to whatever a plan says");
  }
  int64_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, std::ssize(prompt));
  MR_ASSIGN_OR_RETURN(const auto costs, costs_of(runtime, longest, options));
  PatternSearch search(options.search, make_ladders(options.patterns, longest), costs,
                       runtime.device().info().sparse_cost, config.num_layers,
                       config.num_query_heads);
  Passes passes(runtime, prompts, search.ladders(), options.progress);
  MR_RETURN_IF_ERROR(
      passes.run([&](int32_t layer, LayerTrial& trial) { return search.fit(layer, trial); }));
  search.settle();
  MR_RETURN_IF_ERROR(
      passes.run([&](int32_t layer, LayerTrial& trial) { return search.compare(layer, trial); }));

  Calibration calibration{.costs = costs,
                          .num_layers = config.num_layers,
                          .num_heads = config.num_query_heads,
                          .heads = {},
                          .windows = std::move(windows)};
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int32_t head = 0; head < config.num_query_heads; ++head) {
      calibration.heads.push_back(search.choose(layer, head));
    }
  }
  return calibration;
}

}  // namespace millrace::calibrate
