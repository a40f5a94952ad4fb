// SPDX-License-Identifier: Apache-2.0
// Times from a finished prefill to the first token that a GPU decodes, with pages pulled in the
// order of need, hot pages first, or the whole cache first. The ranks are threads of this process
// and prefill on the CPU; pages come from their host pools over a transport within the process.
//   decode_start_bench --model DIR [--tokens 32768] [--repeats 3]
// Prints a line of JSON for each run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>

#include "comm/local/local_transport.h"
#include "common/check.h"
#include "common/page_tokens.h"
#include "common/units.h"
#include "decode/decode_node.h"
#include "kvclient/manifest/manifest_proto.h"
#include "model/load_model_config.h"
#include "tests/support/fake_clock.h"
#include "tests/support/needle_prompt.h"
#include "tests/unit/decode/served_prompt.h"

namespace millrace::bench {

namespace {

int run(int argc, char** argv) {
  std::string model;
  int64_t tokens = 32768;
  int repeats = 3;
  CLI::App app("The first token of a GPU behind a handed-over cache", "decode_start_bench");
  app.add_option("--model", model)->required();
  app.add_option("--tokens", tokens);
  app.add_option("--repeats", repeats);
  CLI11_PARSE(app, argc, argv);
  comm::LocalTransport transport;
  testing::FakeClock clock;  // stands still, so the lease does not end
  Stopwatch watch;
  const auto prompt = testing::make_needle_prompt({.tokens = tokens, .records = 64, .queries = 64});
  const auto config = model::load_model_config(model);
  MR_CHECK(config.ok(), "{}", config.error().to_string());
  const int64_t num_pages =
      config->num_layers * config->num_kv_heads * ceil_div(tokens, kPageTokens);
  const test::ServedPrompt served(transport, clock,
                                  {.model_directory = model,
                                   .grid = {1, 1},
                                   .tokens = prompt.token_ids,
                                   .compute_dtype = DType::kBFloat16,
                                   .device_pages = 0,
                                   .host_pages = num_pages});
  const auto manifest = kvclient::from_protocol(served.manifest());
  fmt::print(stderr, "served after {:.1f} s\n", watch.elapsed_s());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (const auto& [name, start] : {std::pair("need", decode::DecodeStart::kNeed),
                                      std::pair("hot", decode::DecodeStart::kHot),
                                      std::pair("whole", decode::DecodeStart::kWhole)}) {
      const decode::DecodeOptions options{.model_directory = model,
                                          .gpu = 0,
                                          .max_tokens = 2,
                                          .ignore_eos = true,
                                          .attention = decode::AttentionMode::kProgressive,
                                          .progressive = {.start = start}};
      const auto report = decode::decode(transport, manifest, options);
      MR_CHECK(report.ok(), "{}", report.error().to_string());
      const boost::json::object line = {{"start", name},
                                        {"prompt_tokens", tokens},
                                        {"first_token_ms", 1e3 * report->first_token_s},
                                        {"generate_ms", 1e3 * report->generate_s},
                                        {"pulled_pages", report->pulled.pages},
                                        {"token", report->token_ids.back()}};
      fmt::print("{}\n", boost::json::serialize(line));
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  return millrace::bench::run(argc, argv);
}
