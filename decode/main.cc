// SPDX-License-Identifier: Apache-2.0
// millrace-decode: the reference decode node. Pulls a handed-over KV cache and generates greedily
// from it.
//   millrace-decode --manifest FILE | --events FILE --model DIR [--max-tokens N] [--tp T]
//   [--transport auto|shm|tcp] [--attention dense|progressive] [--device cpu|cuda] [--output FILE]
//   [--otlp-endpoint URL]
// Exit status: 0 tokens generated; 1 an error; 2 the command line is wrong.
// Prints a JSON object: the tokens, how much came over which transport from which tier, and how
// much of it before the prefill was done.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "comm/any/any_transport.h"
#include "comm/ucx/any_ucx.h"
#include "common/cli/check_by.h"
#include "common/cli/choice_option.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "common/log.h"
#include "common/logging/init_logging.h"
#include "common/system/cpu.h"
#include "common/system/output_file.h"
#include "common/tracing/otlp_exporter.h"
#include "common/tracing/trace_context.h"
#include "common/units.h"
#include "decode/decode_node.h"
#include "decode/decode_trace.h"
#include "kvclient/handover/event_reader.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::decode {

namespace {

namespace json = boost::json;

struct Options {
  std::string manifest_path;
  std::string events_path;  // "-": standard input
  std::string output_path;
  std::string follow_path;
  std::string otlp_endpoint;  // "" : no trace
  std::string pages_memory = "0";
  std::string host_memory = "0";
  std::string device = "cpu";
  bool no_prediction = false;
  comm::UcxTransports transports = comm::UcxTransports::kAuto;
  TlsFiles tls;
  double timeout_s = 600;
  DecodeOptions decode;
};

void add_tls_options(CLI::App& app, TlsFiles& files) {
  app.add_option("--kv-tls-ca", files.ca,
                 "certificates, in PEM, that those of ranks at tls:// must be signed by")
      ->type_name("FILE")
      ->default_str("those that the system trusts");
  auto* certificate = app.add_option("--kv-tls-cert", files.certificate,
                                     "certificate, in PEM, to show to ranks at tls://");
  auto* key = app.add_option("--kv-tls-key", files.key, "its key, without a passphrase");
  certificate->type_name("FILE")->needs(key);
  key->type_name("FILE")->needs(certificate);
}

void add_attention_options(CLI::App& app, Options& options) {
  auto& progressive = options.decode.progressive;
  cli::add_choice<AttentionMode>(
      app, "--attention", options.decode.attention,
      {{"dense", AttentionMode::kDense}, {"progressive", AttentionMode::kProgressive}},
      "all of a cache that is pulled whole, or for each token as many of its pages as carry "
      "--mass");
  app.add_option("--mass", progressive.mass,
                 "with progressive attention: the share of each head's attention mass to attend to")
      ->check(cli::number_range(0.01, 1.0))
      ->capture_default_str();
  cli::add_choice<bool>(app, "--mass-by", progressive.proven,
                        {{"estimate", false}, {"bound", true}},
                        "what is not attended to is estimated, or bounded: never less than --mass, "
                        "but nearly all pages");
  app.add_option(
         "--pages-memory", options.pages_memory,
         "with progressive attention: memory for pages of each rank, such as 512MiB; 0: all")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->capture_default_str();
  app.add_option("--host-memory", options.host_memory,
                 "on a GPU: page-locked memory for all pages of a cache, such as 20GiB, taken "
                 "before events tell of one; 0: then")
      ->type_name("SIZE")
      ->check(cli::check_by(parse_bytes))
      ->capture_default_str();
  app.add_flag("--no-prediction", options.no_prediction,
               "with progressive attention: do not pull what the next layer is likely to need");
  cli::add_choice<DecodeStart>(
      app, "--start", progressive.start,
      {{"need", DecodeStart::kNeed}, {"hot", DecodeStart::kHot}, {"whole", DecodeStart::kWhole}},
      "with progressive attention: begin without pages, with the hot ones, or with all that fit");
  app.add_option("--follow", options.follow_path,
                 "go on with these tokens, a JSON list, and print what would have come instead")
      ->type_name("FILE");
}

void add_mlp_options(CLI::App& app, PredictedMlpOptions& mlp) {
  auto* predictor =
      app.add_option("--neuron-predictor", mlp.predictor_path,
                     "compute the MLP neurons alone that this file of tools/calibrate/neurons "
                     "predicts: faster, and other tokens");
  predictor->type_name("FILE");
  app.add_option("--mlp-share", mlp.share, "with --neuron-predictor: share of each layer's neurons")
      ->check(cli::number_range(0.01, 1.0))
      ->capture_default_str()
      ->needs(predictor);
}

// None: the CPU.
Result<std::optional<int>> parse_gpu(std::string_view text) {
  if (text == "cpu") return std::optional<int>();
  if (text == "cuda") return std::optional(0);
  const std::string_view number = text.starts_with("cuda:") ? text.substr(5) : "";
  int gpu = -1;
  const auto [end, wrong] = std::from_chars(number.begin(), number.end(), gpu);
  if (wrong != std::errc() || end != number.end() || gpu < 0) {
    return error(Errc::kInvalidArgument, "'{}': not cpu, cuda or cuda:N", text);
  }
  return std::optional(gpu);
}

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
  cli::add_choice<std::optional<DType>>(
      app, "--cache-dtype", options.decode.cache_dtype,
      {{"auto", std::nullopt},
       {"float32", DType::kFloat32},
       {"bfloat16", DType::kBFloat16},
       {"float16", DType::kFloat16}},
      "with --events: what the cache will be in, so that the model is loaded for it; auto: what "
      "the model is in, and loaded again where the cache is not");
  app.add_option(
         "--device", options.device,
         "a GPU decodes with progressive attention: pages without a slot in --pages-memory lie "
         "in page-locked memory of the host")
      ->option_text("cpu|cuda|cuda:N")
      ->check(cli::check_by(parse_gpu))
      ->capture_default_str();
  app.add_option("--tp", options.decode.tp, "tensor-parallel ranks, as threads")
      ->check(cli::number_range(1, 64))
      ->capture_default_str();
  cli::add_choice<comm::UcxTransports>(app, "--transport", options.transports,
                                       comm::ucx_transport_names(),
                                       "auto: whatever the ranks speak, and from their memory on "
                                       "the same host; tcp: not from memory; shm: by UCX's shared "
                                       "memory alone");
  add_tls_options(app, options.tls);
  cli::add_choice<kvclient::PullOrder>(
      app, "--order", options.decode.order,
      {{"position", kvclient::PullOrder::kPosition}, {"hot", kvclient::PullOrder::kCriticality}},
      "pages layer by layer, or those with most attention first");
  app.add_option("--hot-share", options.decode.hot_share,
                 "with --order hot: share of each head's attention mass that comes first")
      ->check(cli::number_range(0.01, 1.0))
      ->capture_default_str();
  add_attention_options(app, options);
  add_mlp_options(app, options.decode.mlp);
  app.add_option("--timeout-s", options.timeout_s,
                 "time limit for pull and generation together, in seconds")
      ->check(cli::positive_seconds())
      ->capture_default_str();
  app.add_option("--otlp-endpoint", options.otlp_endpoint,
                 "OpenTelemetry collector that gets a trace of the run, by OTLP over HTTP; it is a "
                 "part of what $TRACEPARENT names")
      ->type_name("URL")
      ->check(cli::check_by(tracing::OtlpEndpoint::parse))
      ->default_str("none");
  app.add_option("--output", options.output_path, "write the JSON here")
      ->type_name("FILE")
      ->default_str("stdout");
}

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

json::object to_json(const ProgressiveReport& report) {
  const int64_t steps = report.attention.steps;
  json::array layers;
  PoolCounts all;
  int64_t touched = 0;
  for (size_t layer = 0; layer < report.pool.layers.size(); ++layer) {
    const auto& counts = report.pool.layers[layer];
    const int64_t pages = report.attention.pages_touched[layer];
    all.add(counts);
    touched += pages;
    layers.push_back({{"pages_per_token", share(pages, steps)},
                      {"density", share(pages, steps * report.layer_pages)},
                      {"hits", counts.hits},
                      {"predicted_hits", counts.predicted},
                      {"late", counts.late},
                      {"misses", counts.misses}});
  }
  const auto num_layers = std::ssize(layers);
  return {{"density", share(touched, steps * report.layer_pages * num_layers)},
          {"pages_per_token", share(touched, steps)},
          {"hit_rate", share(all.hits, all.asked())},
          {"predicted_hits", all.predicted},
          {"late", all.late},
          {"misses", all.misses},
          {"pool_pages", report.num_slots},
          {"evictions", report.pool.evictions},
          {"filled_pages", report.pool.filled_pages},
          {"predicted_pages", report.pool.predicted_pages},
          {"needed_pages", report.pool.needed_pages},
          {"predictions", report.lookahead.made},
          {"predictions_dropped", report.lookahead.dropped},
          {"predicted_share_of_read",
           share(report.lookahead.pages_foreseen, report.lookahead.pages_read)},
          {"digest_bytes", report.intake.digest_bytes},
          {"digests_s", report.intake.digests_s},
          {"hot_pages", report.intake.hot_pages},
          {"hot_s", report.intake.hot_s},
          {"whole_s", report.intake.whole_s},
          {"layers", std::move(layers)}};
}

json::object to_json(const kernels::DevicePagesStats& stats) {
  return {{"pages_per_token", share(stats.pages_read, stats.tokens)},
          {"spared_per_token", share(stats.pages_spared, stats.tokens)},
          {"hit_rate", 1 - share(stats.from_host, stats.pages_read + stats.pages_spared)},
          {"from_host_per_token", share(stats.from_host, stats.tokens)},
          {"predicted_share_of_read", share(stats.pages_foreseen, stats.pages_of_foreseen)},
          {"copied_per_token", share(stats.copied, stats.tokens)},
          {"batches_skipped", stats.skipped}};
}

json::object to_json(const PredictedMlpReport& report) {
  return {{"share", report.share},
          {"neurons", report.neurons},
          {"predictor_rank", report.rank},
          {"bytes_per_token", report.bytes_per_token},
          {"dense_bytes_per_token", report.dense_bytes_per_token}};
}

json::object to_json(const DecodeReport& report, AttentionMode attention) {
  const auto& pulled = report.pulled;
  json::object transports;
  for (const auto& [name, bytes] : pulled.bytes_by_transport) transports[name] = bytes;
  json::array checksums;
  for (const uint64_t checksum : report.cache_checksums) {
    checksums.emplace_back(fmt::format("{:016x}", checksum));
  }
  json::object all = {{"generated_token_ids", json::value_from(report.token_ids)},
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
                      {"generate_s", report.generate_s},
                      {"first_token_s", report.first_token_s}};
  if (report.device_pages) {
    all["device_pages"] = to_json(*report.device_pages);
  } else if (attention == AttentionMode::kProgressive) {
    all["progressive"] = to_json(report.progressive);
  }
  if (report.mlp) all["mlp"] = to_json(*report.mlp);
  return all;
}

Result<std::vector<int32_t>> read_tokens(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return error(Errc::kIo, "{}: cannot be read", path);
  boost::system::error_code wrong;
  const auto list = json::parse(text.str(), wrong);
  const auto tokens = wrong ? boost::system::result<std::vector<int32_t>>(wrong)
                            : json::try_value_to<std::vector<int32_t>>(list);
  if (!tokens || tokens->empty()) {
    return error(Errc::kInvalidArgument, "{}: not a JSON list of tokens", path);
  }
  return *tokens;
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

// Where the run stands in a trace, as the environment says; it is a new one if that says nothing.
tracing::TraceContext trace_from_environment() {
  const char* given = std::getenv("TRACEPARENT");
  if (const auto context = tracing::parse_traceparent(given == nullptr ? "" : given)) {
    return *context;
  }
  return {.trace_id = tracing::make_trace_id(), .span_id = "", .sampled = true};
}

Result<void> send_trace(const std::string& endpoint, TimePoint began,
                        const Result<DecodeReport>& report) {
  const TimePoint ended = Clock::steady().now();
  const auto context = trace_from_environment();
  if (!context.sampled) return {};
  tracing::OtlpSettings settings;
  MR_ASSIGN_OR_RETURN(settings.endpoint, tracing::OtlpEndpoint::parse(endpoint));
  if (settings.endpoint.encrypted) {
    MR_ASSIGN_OR_RETURN(settings.tls, make_client_tls({}));
  }
  settings.sender = {.service = "millrace-decode",
                     .instance = std::to_string(::getpid()),
                     .version = MILLRACE_VERSION};
  metrics::Registry registry;
  tracing::OtlpExporter exporter(std::move(settings), registry);
  exporter.add(decode_spans(context, began, ended, report));
  return {};
}

Result<DecodeReport> decode(comm::Transport& transport, const Options& options) {
  return options.events_path.empty() ? decode_finished(transport, options)
                                     : decode_events(transport, options);
}

Result<void> run(Options& options) {
  MR_ASSIGN_OR_RETURN(OutputFile output, OutputFile::open(options.output_path));
  if (!options.follow_path.empty()) {
    MR_ASSIGN_OR_RETURN(options.decode.follow, read_tokens(options.follow_path));
  }
  MR_ASSIGN_OR_RETURN(options.decode.progressive.pages_memory_bytes,
                      parse_bytes(options.pages_memory));
  MR_ASSIGN_OR_RETURN(options.decode.progressive.host_memory_bytes,
                      parse_bytes(options.host_memory));
  options.decode.on_loaded = [] { log::info("ready for events: the model is loaded"); };
  options.decode.progressive.predict = !options.no_prediction;
  MR_ASSIGN_OR_RETURN(options.decode.gpu, parse_gpu(options.device));
  options.decode.threads_per_rank = std::max(1, usable_cores() / options.decode.tp);
  options.decode.timeout = cli::from_seconds(options.timeout_s);
  options.decode.client.same_host = options.transports == comm::UcxTransports::kAuto;
  const bool by_ucx = options.transports == comm::UcxTransports::kSharedMemory;
  comm::AnyTransport transport(by_ucx ? std::nullopt
                                      : std::optional(comm::TcpOptions{.client_tls = options.tls}));
  add_ucx(transport, {.transports = options.transports});
  const bool has_tls = !options.tls.ca.empty() || !options.tls.certificate.empty();
  if (has_tls) MR_RETURN_IF_ERROR(transport.check_tls());
  const TimePoint began = Clock::steady().now();
  const auto report = decode(transport, options);
  if (!options.otlp_endpoint.empty()) {
    const auto sent = send_trace(options.otlp_endpoint, began, report);
    if (!sent.ok()) log::warn("trace: {}", sent.error().message);
  }
  if (!report.ok()) return report.error();
  return output.write(json::serialize(to_json(*report, options.decode.attention)) + "\n");
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
  millrace::log::error("{}", done.error().to_string());
  return 1;
}
