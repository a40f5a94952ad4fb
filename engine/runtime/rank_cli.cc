// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/rank_cli.h"

#include "common/cli/check_by.h"
#include "common/cli/choice_option.h"
#include "common/cli/number_range.h"

namespace millrace::engine {

namespace {

constexpr int kMaxRanks = 32768;  // of each kind: their product is an int
constexpr int kMaxThreads = 4096;

}  // namespace

void add_model_options(CLI::App& app, RankOptions& options) {
  app.add_option("--model", options.model_directory,
                 "Hugging Face directory: config.json and safetensors")
      ->type_name("DIR")
      ->required();
  options.device.kind = DeviceChoice::Kind::kAuto;
  app.add_option_function<std::string>(
         "--device",
         [&options](const std::string& text) {
           options.device = parse_device_choice(text).value();
         },
         "auto: a GPU if there is one; cuda: ranks take the machine's GPUs in turn")
      ->option_text("auto|cpu|cuda|cuda:N")
      ->check(cli::check_by(parse_device_choice))
      ->default_str("auto");
  cli::add_choice<std::optional<DType>>(app, "--dtype", options.compute_dtype,
                                        {{"auto", std::nullopt},
                                         {"float32", DType::kFloat32},
                                         {"bfloat16", DType::kBFloat16},
                                         {"float16", DType::kFloat16}},
                                        "type of arithmetic and KV cache; auto: the faster one on "
                                        "a CPU, 16 bits as in the checkpoint on a GPU");
  cli::add_choice<model::Quantization>(
      app, "--quantization", options.quantization,
      {{"none", model::Quantization::kNone},
       {"fp8", model::Quantization::kFloat8},
       {"fp8-except-qkv", model::Quantization::kFloat8ExceptQkv}},
      "fp8: linear layers multiply 8-bit floats (e4m3), weights scaled by output channel, "
      "activations by token, but for the last layer and Q, K and V of the third quarter of the "
      "layers; fp8-except-qkv: all but the last layer and Q, K and V");
  app.add_option("--threads", options.num_threads,
                 "threads of this rank; 0: its share of the machine's cores")
      ->check(cli::number_range(0, kMaxThreads))
      ->capture_default_str();
  app.add_option("--max-prompt-tokens", options.max_prompt_tokens,
                 "longest prompt to accept; 0: what model and memory allow")
      ->check(cli::number_range(int64_t{0}))
      ->capture_default_str();
}

void add_rank_options(CLI::App& app, RankOptions& options) {
  app.footer(
      "PLAN is auto, dense, a-shape:S,W, elastic:ALPHA,BETA, vertical-slash:V,S, block-sparse:K,\n"
      "adaptive[:GAMMA[,ENOUGH[,ROWS]]] or a JSON file: see docs/head-plans.md.");
  add_model_options(app, options);
  cli::add_choice<bool>(app, "--kv-cache-dtype", options.float8_kv,
                        {{"auto", false}, {"fp8", true}},
                        "type of the KV cache that is kept and handed over; auto: that of "
                        "arithmetic; fp8: 8-bit floats (e4m3), scaled as the checkpoint says");
  app.add_option("--tp", options.grid.tp, "tensor-parallel ranks")
      ->check(cli::number_range(1, kMaxRanks))
      ->capture_default_str();
  app.add_option("--cp", options.grid.cp, "context-parallel ranks; mpirun starts tp * cp ranks")
      ->check(cli::number_range(1, kMaxRanks))
      ->capture_default_str();
  app.add_option("--stripe-tokens", options.engine.stripe_tokens,
                 "approximate length of context-parallel stripes; 0: by prompt length")
      ->check(cli::number_range(int64_t{0}))
      ->capture_default_str();
  app.add_option(
         "--crossover-tokens", options.crossover_tokens,
         "head plan auto is dense below this length, adaptive from there on; -1: measured at start")
      ->check(cli::number_range(int64_t{-1}, int64_t{1} << 40))
      ->capture_default_str();
}

void add_prompt_options(CLI::App& app, std::string& head_plan, double& min_recall,
                        double& layer_timeout_s) {
  app.add_option("--head-plan", head_plan,
                 "head plan, see below; requests to a service may name another")
      ->type_name("PLAN")
      ->capture_default_str();
  app.add_option("--min-recall", min_recall,
                 "least share of its attention mass that each sampled row of an adaptive head "
                 "covers, 0 to 1")
      ->type_name("SHARE")
      ->check(cli::number_range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--layer-timeout-s", layer_timeout_s,
                 "a rank counts as lost if a layer takes longer, in seconds")
      ->check(cli::positive_seconds())
      ->capture_default_str();
}

}  // namespace millrace::engine
