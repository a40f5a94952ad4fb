// millrace-decode: the reference decode node. Pulls a handed-over KV cache and generates greedily
// from it.
//   millrace-decode --manifest FILE | --events FILE --model DIR [--max-tokens N] [--tp T]
//   [--transport auto|shm|tcp] [--output FILE]
// Exit status: 0 tokens generated; 1 an error; 2 the command line is wrong.
// Prints a JSON object: the tokens, how much came over which transport from which tier, and how
// much of it before the prefill was done.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <system_error>

#include "comm/ucx/ucx_transport.h"
#include "common/cli/choice_option.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/log.h"
#include "common/system/output_file.h"
#include "common/system/usable_cores.h"
#include "decode/decode_node.h"
#include "kvclient/handover/event_reader.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::decode {

namespace {

namespace json = boost::json;

struct Options {
  std::string manifest_path;
  std::string events_path;  // "-": standard input
  std::string output_path;
  comm::UcxTransports transports = comm::UcxTransports::kAuto;
  double timeout_s = 600;
  DecodeOptions decode;
};

void add_options(CLI::App& app, Options& options) {
  auto* manifest = app.add_option("--manifest", options.manifest_path,
                                  "JSON of the manifest, or of the prefill response that holds it")
                       ->type_name("FILE");
  app.add_option("--events", options.events_path,
                 "instead of --manifest: events of a streamed prefill; - is standard input")
      ->type_name("FILE")
      ->excludes(manifest);
  app.add_option("--model", options.decode.model_directory,
                 "Hugging Face directory: config.json and safetensors")
      ->type_name("DIR")
      ->required();
  app.add_option("--max-tokens", options.decode.max_tokens, "number of tokens to generate")
      ->check(cli::number_range(1, 65536))
      ->capture_default_str();
  app.add_flag("--ignore-eos", options.decode.ignore_eos, "continue after end-of-text tokens");
  app.add_flag("--any-weights", options.decode.any_weights,
               "also of a model whose fingerprint is not the cache's");
  app.add_option("--tp", options.decode.tp, "tensor-parallel ranks, as threads")
      ->check(cli::number_range(1, 64))
      ->capture_default_str();
  cli::add_choice<comm::UcxTransports>(app, "--transport", options.transports,
                                       comm::ucx_transport_names(), "transport for pages");
  cli::add_choice<kvclient::PullOrder>(
      app, "--order", options.decode.order,
      {{"position", kvclient::PullOrder::kPosition}, {"hot", kvclient::PullOrder::kCriticality}},
      "pages layer by layer, or those with most attention first");
  app.add_option("--hot-share", options.decode.hot_share,
                 "with --order hot: share of each head's attention mass that comes first")
      ->check(cli::number_range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--timeout-s", options.timeout_s,
                 "time limit for pull and generation together, in seconds")
      ->check(cli::positive_seconds())
      ->capture_default_str();
  app.add_option("--output", options.output_path, "write the JSON here")
      ->type_name("FILE")
      ->default_str("stdout");
}

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

json::object to_json(const DecodeReport& report) {
  const auto& pulled = report.pulled;
  json::object transports;
  for (const auto& [name, bytes] : pulled.bytes_by_transport) transports[name] = bytes;
  json::array checksums;
  for (const uint64_t checksum : report.cache_checksums) {
    checksums.emplace_back(fmt::format("{:016x}", checksum));
  }
  return {{"generated_token_ids", json::value_from(report.token_ids)},
          {"finish_reason", report.finish_reason},
          {"pulled_pages", pulled.pages},
          {"pulled_bytes", pulled.bytes},
          {"pulled_while_computing_bytes", report.bytes_while_computing},
          {"pulled_before_done_bytes", report.bytes_before_done},
          {"pulled_before_done_share", share(report.bytes_before_done, pulled.bytes)},
          {"tail_s", report.tail_s},
          {"hot_pages", pulled.hot_pages},
          {"hot_share_of_pages", share(pulled.hot_pages, pulled.pages)},
          {"hot_s", report.hot_s},
          {"score_bytes", pulled.score_bytes},
          {"cache_checksums", std::move(checksums)},
          {"pages_by_tier",
           {{"device", pulled.pages_by_tier[Tier::kDevice]},
            {"host", pulled.pages_by_tier[Tier::kHost]},
            {"disk", pulled.pages_by_tier[Tier::kDisk]}}},
          {"bytes_by_transport", std::move(transports)},
          {"corrupt_pages", pulled.corrupt_pages},
          {"pull_s", pulled.seconds},
          {"generate_s", report.generate_s}};
}

Result<DecodeReport> decode_finished(comm::Transport& transport, const Options& options) {
  MR_ASSIGN_OR_RETURN(const auto manifest, kvclient::read_manifest(options.manifest_path));
  return decode(transport, manifest, options.decode);
}

Result<DecodeReport> decode_events(comm::Transport& transport, const Options& options) {
  const bool standard_input = options.events_path == "-";
  const int input =
      standard_input ? STDIN_FILENO : ::open(options.events_path.c_str(), O_RDONLY | O_CLOEXEC);
  if (input < 0) {
    return error(Errc::kIo, "{}: {}", options.events_path, std::generic_category().message(errno));
  }
  const auto feed = std::make_shared<kvclient::HandoverFeed>();
  auto report = [&]() -> Result<DecodeReport> {
    MR_ASSIGN_OR_RETURN(const auto reader, kvclient::EventReader::start(input, *feed));
    return decode(transport, feed, options.decode);
  }();
  if (!standard_input) ::close(input);
  return report;
}

Result<void> run(Options& options) {
  MR_ASSIGN_OR_RETURN(OutputFile output, OutputFile::open(options.output_path));
  options.decode.threads_per_rank = std::max(1, usable_cores() / options.decode.tp);
  options.decode.timeout = cli::from_seconds(options.timeout_s);
  options.decode.client.same_host = options.transports == comm::UcxTransports::kAuto;
  MR_ASSIGN_OR_RETURN(const auto transport,
                      comm::UcxTransport::create({.transports = options.transports}));
  MR_ASSIGN_OR_RETURN(const auto report, options.events_path.empty()
                                             ? decode_finished(*transport, options)
                                             : decode_events(*transport, options));
  return output.write(json::serialize(to_json(report)) + "\n");
}

}  // namespace

}  // namespace millrace::decode

int main(int argc, char** argv) {
  millrace::decode::Options options;
  CLI::App app(
      "Pulls a handed-over KV cache and generates from it:\n"
      "  millrace-decode --manifest response.json --model DIR",
      "millrace-decode");
  app.formatter(std::make_shared<millrace::cli::HelpFormatter>());
  app.set_version_flag("--version", MILLRACE_VERSION);
  millrace::decode::add_options(app, options);
  if (const auto status = millrace::cli::parse(app, argc, argv)) return *status;
  if (options.manifest_path.empty() && options.events_path.empty()) {
    std::fputs("millrace-decode: --manifest or --events is required\n", stderr);
    return millrace::cli::kUsageStatus;
  }
  millrace::init_logging("decode");
  const auto done = millrace::decode::run(options);
  if (done.ok()) return 0;
  spdlog::error("{}", done.error().to_string());
  return 1;
}
