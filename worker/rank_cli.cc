#include "worker/rank_cli.h"

#include <map>

namespace millrace::worker {

void add_rank_options(CLI::App &app, RankOptions &options) {
  static const std::map<std::string, DType> kDTypes = {
      {"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}};
  app.add_option("--model", options.model_directory,
                 "Hugging Face directory: config.json and safetensors")
      ->required();
  app.add_option("--tp", options.grid.tp, "tensor-parallel ranks")
      ->check(CLI::PositiveNumber);
  app.add_option("--cp", options.grid.cp, "context-parallel ranks")
      ->check(CLI::PositiveNumber);
  options.device.kind = DeviceChoice::Kind::kAuto;
  app.add_option_function<std::string>(
         "--device",
         [&options](const std::string &text) {
           const auto choice = parse_device_choice(text);
           if (!choice.ok())
             throw CLI::ValidationError("--device", choice.error().message);
           options.device = *choice;
         },
         "auto: a GPU where there is one, ranks of a machine in turn; cuda:N: "
         "this one")
      ->type_name("auto|cpu|cuda|cuda:N")
      ->default_str("auto");
  app.add_option_function<DType>(
         "--dtype",
         [&options](const DType &dtype) { options.compute_dtype = dtype; },
         "of arithmetic and KV cache; default: float32 on a CPU, bfloat16 on a "
         "GPU")
      ->transform(CLI::CheckedTransformer(kDTypes));
  app.add_option("--threads", options.num_threads,
                 "threads of this rank; 0: its share of the machine's cores")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--stripe-tokens", options.engine.stripe_tokens,
                 "tokens of a context-parallel stripe, a multiple of 64; 0: by "
                 "prompt length")
      ->check(CLI::Validator(
          [](const std::string &text) {
            return std::stoll(text) % kernels::kPageTokens == 0
                       ? std::string()
                       : "no multiple of 64";
          },
          "MULTIPLE OF 64"));
  app.add_option(
         "--max-prompt-tokens", options.max_prompt_tokens,
         "longest prompt; 0: what the model and half of the free memory allow")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--crossover-tokens", options.crossover_tokens,
                 "with head plan auto, dense below this length, adaptive from "
                 "it on; -1: measured at start");
}

} // namespace millrace::worker
