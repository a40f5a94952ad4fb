#include "worker/rank_cli.h"

#include <map>

namespace millrace::worker {

void add_rank_options(CLI::App& app, RankOptions& options) {
  static const std::map<std::string, DType> kDTypes = {{"float32", DType::kFloat32},
                                                       {"bfloat16", DType::kBFloat16}};
  app.add_option("--model", options.model_directory,
                 "Hugging Face directory: config.json and safetensors")
      ->required();
  app.add_option("--tp", options.grid.tp, "tensor-parallel ranks")->check(CLI::PositiveNumber);
  app.add_option("--cp", options.grid.cp, "context-parallel ranks")->check(CLI::PositiveNumber);
  app.add_option("--dtype", options.compute_dtype, "of compute and KV: float32 or bfloat16")
      ->transform(CLI::CheckedTransformer(kDTypes));
  app.add_option("--threads", options.num_threads,
                 "threads of this rank; 0: its share of the machine's cores")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--stripe-tokens", options.engine.stripe_tokens,
                 "tokens of a context-parallel stripe, a multiple of 64; 0: by prompt length")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::stoll(text) % kernels::kPageTokens == 0 ? std::string()
                                                                : "no multiple of 64";
          },
          "MULTIPLE OF 64"));
  app.add_option("--max-prompt-tokens", options.max_prompt_tokens,
                 "longest prompt; 0: what the model and half of the free memory allow")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
      "--crossover-tokens", options.crossover_tokens,
      "with head plan auto, dense below this length, adaptive from it on; -1: measured at start");
}

}  // namespace millrace::worker
