// SPDX-License-Identifier: Apache-2.0
#include "decode/decode_node.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "comm/local/local_group.h"
#include "common/log.h"
#include "decode/device_cache.h"
#include "decode/pool/read_dtype.h"
#include "decode/pulled_cache.h"
#include "decode/warm_up.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_device.h"
#include "kvclient/manifest/manifest.h"
#include "model/generator.h"

namespace millrace::decode {

namespace {

Result<void> check_model(const model::ModelWeights& weights, const kvclient::Manifest& manifest,
                         bool any_weights) {
  const auto& config = weights.config;
  const auto& layout = manifest.layout;
  if (layout.num_layers != config.num_layers || layout.num_kv_heads != config.num_kv_heads ||
      layout.head_dim != config.head_dim) {
    return error(Errc::kInvalidArgument,
                 "the cache has {} layers, {} kv heads, head dim {}; model {} has {}, {}, {}",
                 layout.num_layers, layout.num_kv_heads, layout.head_dim, config.name,
                 config.num_layers, config.num_kv_heads, config.head_dim);
  }
  if (!any_weights && manifest.model_fingerprint != weights.fingerprint) {
    return error(Errc::kInvalidArgument,
                 "the cache is of a model '{}' with fingerprint '{}'; this model, '{}', has {}",
                 manifest.model, manifest.model_fingerprint, config.name, weights.fingerprint);
  }
  return {};
}

double tail_s(const PullTimeline& timeline, TimePoint done_at) {
  const auto tail = timeline.complete - std::max(done_at, timeline.began);
  return std::max(0.0, seconds(tail));
}

// State shared by all ranks of a node.
struct Node {
  comm::Transport& transport;
  kvclient::PullClient& client;
  const std::shared_ptr<kvclient::HandoverFeed> feed;
  const DecodeOptions& options;
  const Deadline deadline;
  std::atomic<int> num_loaded = 0;  // ranks
};

// One rank, from the pull to the last token.
class RankRun {
 public:
  RankRun(Node& node, comm::Communicator& tp, comm::Communicator& alone)
      : node_(node), tp_(tp), alone_(alone) {}

  Result<DecodeReport> run() {
    MR_RETURN_IF_ERROR(make_device());
    // A model can be loaded while the prompt is computed, or before.
    const auto known = node_.feed->wait_for_manifest(Deadline::after(Duration::zero()));
    if (!known.ok()) MR_RETURN_IF_ERROR(load_ahead());
    MR_RETURN_IF_ERROR(wait_for_manifest());
    MR_RETURN_IF_ERROR(load());
    if (node_.options.gpu) return run_on_gpu();
    return node_.options.attention == AttentionMode::kDense ? run_dense() : run_progressive();
  }

 private:
  Result<void> make_device() {
    if (!node_.options.gpu) {
      device_ = kernels::make_cpu_device({.num_threads = node_.options.threads_per_rank});
      return {};
    }
    MR_ASSIGN_OR_RETURN(device_, kernels::make_cuda_device({.index = *node_.options.gpu}));
    return {};
  }

  // Loads for the dtype that the cache has or is likely to have: the model's own.
  Result<void> load_ahead() {
    MR_ASSIGN_OR_RETURN(const DType stored, model::stored_dtype(node_.options.model_directory));
    DType cached = node_.options.cache_dtype.value_or(stored);
    if (node_.options.gpu && cached == DType::kFloat32) cached = DType::kBFloat16;
    MR_RETURN_IF_ERROR(load_weights(dtype_beside(cached)));
    if (node_.options.gpu) MR_RETURN_IF_ERROR(prepare_gpu());
    if (++node_.num_loaded == tp_.size() && node_.options.on_loaded) node_.options.on_loaded();
    return {};
  }

  Result<void> prepare_gpu() {
    const auto& progressive = node_.options.progressive;
    if (node_.options.max_tokens > 1) {
      std::unique_ptr<kernels::Device> ahead;
      if (progressive.predict) {
        MR_ASSIGN_OR_RETURN(ahead, kernels::make_cuda_device({.index = *node_.options.gpu}));
      }
      MR_RETURN_IF_ERROR(make_generator());
      MR_RETURN_IF_ERROR(warm_up(*device_, ahead.get(), *weights_, *generator_, node_.deadline));
    }
    if (progressive.host_memory_bytes > 0) {
      MR_ASSIGN_OR_RETURN(memory_, device_->allocate_host(progressive.host_memory_bytes));
    }
    return {};
  }

  Result<void> wait_for_manifest() {
    MR_ASSIGN_OR_RETURN(auto manifest, node_.feed->wait_for_manifest(node_.deadline));
    MR_RETURN_IF_ERROR(kvclient::check_manifest(manifest));
    manifest_ = std::make_shared<const kvclient::Manifest>(std::move(manifest));
    return {};
  }

  // The dtype in which this node computes with a cache of this dtype.
  DType dtype_beside(DType cached) const {
    // If the cache is float16, for which a CPU has no products, float32 holds its weights exactly.
    return node_.options.gpu || cached == DType::kBFloat16 ? cached : DType::kFloat32;
  }

  Result<DType> compute_dtype() const {
    if (!node_.options.gpu || !manifest_->is_float8()) {
      return dtype_beside(read_dtype(*manifest_));
    }
    // 8-bit floats do not tell in which dtype they were computed; a GPU computes in 16 bits.
    MR_ASSIGN_OR_RETURN(const DType stored, model::stored_dtype(node_.options.model_directory));
    return stored == DType::kFloat32 ? DType::kBFloat16 : stored;
  }

  Result<void> load_weights(DType dtype) {
    const auto& options = node_.options;
    if (!device_->info().computes_in(dtype)) {
      return error(Errc::kUnsupported, "{} does not compute in {}", device_->info().name,
                   dtype_name(dtype));
    }
    if (weights_ && tp_.rank() == 0) {
      log::info(
          "the model is loaded again: the cache takes {}, and it was loaded for {}; --cache-dtype "
          "says beforehand what caches are in",
          dtype_name(dtype), dtype_name(weights_->compute_dtype));
    }
    ++num_loads_;
    generator_.reset();
    weights_.reset();
    MR_ASSIGN_OR_RETURN(weights_,
                        model::load_model_weights(options.model_directory, {tp_.rank(), tp_.size()},
                                                  dtype, *device_, options.threads_per_rank));
    if (tp_.rank() != 0 || num_loads_ > 1) return {};
    for (const auto& warning : weights_->warnings) log::warn("{}", warning);
    return {};
  }

  Result<void> load() {
    const auto& options = node_.options;
    MR_ASSIGN_OR_RETURN(const DType dtype, compute_dtype());
    if (!weights_ || weights_->compute_dtype != dtype) MR_RETURN_IF_ERROR(load_weights(dtype));
    MR_RETURN_IF_ERROR(check_model(*weights_, *manifest_, options.any_weights));
    if (!options.mlp.predictor_path.empty()) {
      MR_ASSIGN_OR_RETURN(mlp_,
                          PredictedMlp::open(options.mlp, *weights_, options.threads_per_rank));
    }
    return generator_ ? Result<void>() : make_generator();
  }

  Result<void> make_generator() {
    MR_ASSIGN_OR_RETURN(generator_, model::Generator::create(*device_, *weights_, tp_, alone_,
                                                             node_.options.max_tokens));
    return {};
  }

  Result<DecodeReport> run_dense() {
    const auto& options = node_.options;
    MR_ASSIGN_OR_RETURN(
        const auto cache,
        PulledCache::pull(node_.client, *manifest_, node_.feed, weights_->shard, *device_,
                          {options.order, options.hot_share}, node_.deadline));
    const auto& timeline = cache.timeline();
    MR_ASSIGN_OR_RETURN(const auto result, node_.feed->wait_for_result(node_.deadline));
    DecodeReport report{.pulled = cache.stats(),
                        .bytes_while_computing = timeline.bytes_while_computing,
                        .bytes_before_done = timeline.bytes_before_done,
                        .tail_s = tail_s(timeline, node_.feed->done_at()),
                        .hot_s = timeline.hot_s,
                        .cache_checksums = {cache.checksum()}};
    MR_RETURN_IF_ERROR(generate(
        {.prompt = cache.slabs(), .heads = cache.heads(), .first_token = result.first_token_id},
        timeline.began, report));
    return report;
  }

  Result<DecodeReport> run_progressive() {
    const auto& options = node_.options;
    MR_ASSIGN_OR_RETURN(const auto prompt,
                        PagedPrompt::open({.transport = &node_.transport,
                                           .client = &node_.client,
                                           .manifest = manifest_,
                                           .feed = node_.feed,
                                           .weights = weights_.get(),
                                           .num_threads = options.threads_per_rank},
                                          options.progressive, options.hot_share, node_.deadline));
    const auto began = Clock::steady().now();
    MR_RETURN_IF_ERROR(prompt->wait(node_.deadline));
    MR_ASSIGN_OR_RETURN(const auto result, node_.feed->wait_for_result(node_.deadline));
    DecodeReport report;
    MR_RETURN_IF_ERROR(
        generate({.attention = prompt.get(), .first_token = result.first_token_id}, began, report));
    report.pulled = prompt->pulled();
    report.pulled.seconds = seconds(Clock::steady().now() - began);
    report.progressive = prompt->report();
    return report;
  }

  Result<DecodeReport> run_on_gpu() {
    const auto& options = node_.options;
    MR_ASSIGN_OR_RETURN(const auto cache, DeviceCache::open({.transport = &node_.transport,
                                                             .client = &node_.client,
                                                             .manifest = manifest_,
                                                             .feed = node_.feed,
                                                             .weights = weights_.get(),
                                                             .device = device_.get()},
                                                            options.progressive, options.hot_share,
                                                            node_.deadline, std::move(memory_)));
    const auto began = Clock::steady().now();
    MR_RETURN_IF_ERROR(cache->wait(options.progressive.start, node_.deadline));
    MR_ASSIGN_OR_RETURN(const auto result, node_.feed->wait_for_result(node_.deadline));
    DecodeReport report;
    MR_RETURN_IF_ERROR(generate(
        {.attention = &cache->prompt(), .first_token = result.first_token_id}, began, report));
    report.pulled = cache->pulled();
    report.pulled.seconds = seconds(Clock::steady().now() - began);
    MR_ASSIGN_OR_RETURN(report.device_pages, cache->stats(node_.deadline));
    return report;
  }

  Result<void> generate(model::GenerateRequest request, TimePoint began, DecodeReport& report) {
    const auto& options = node_.options;
    const auto from = std::max(began, node_.feed->done_at());
    request.mlp = mlp_.get();
    request.num_prompt_tokens = manifest_->num_tokens;
    request.max_tokens = options.max_tokens;
    request.ignore_eos = options.ignore_eos;
    if (!options.follow.empty()) request.follow = std::span(options.follow).subspan(1);
    request.on_token = [&report, from] {
      if (report.first_token_s == 0) report.first_token_s = seconds(Clock::steady().now() - from);
    };
    report.pull_began = began;
    report.generate_began = Clock::steady().now();
    Stopwatch watch;
    MR_ASSIGN_OR_RETURN(report.token_ids,
                        generator_->generate(request, [this] { return node_.deadline; }));
    report.finish_reason =
        model::finish_reason(report.token_ids, weights_->config, options.ignore_eos);
    report.model_loads = num_loads_;
    report.generate_s = watch.elapsed_s();
    if (mlp_ != nullptr) report.mlp = mlp_->report();
    return {};
  }

  Node& node_;
  comm::Communicator& tp_;
  comm::Communicator& alone_;
  std::unique_ptr<kernels::Device> device_;
  kernels::HostBuffer memory_;  // until a cache takes it
  std::shared_ptr<const kvclient::Manifest> manifest_;
  std::unique_ptr<model::ModelWeights> weights_;
  int num_loads_ = 0;
  std::unique_ptr<PredictedMlp> mlp_;
  std::optional<model::Generator> generator_;
};

void add(kvclient::PullStats& sum, const kvclient::PullStats& rank) {
  sum.pages += rank.pages;
  sum.bytes += rank.bytes;
  for (const Tier tier : kTiers) sum.pages_by_tier[tier] += rank.pages_by_tier[tier];
  sum.corrupt_pages += rank.corrupt_pages;
  sum.hot_pages += rank.hot_pages;
  sum.hot_pages_total += rank.hot_pages_total;
  sum.score_bytes += rank.score_bytes;
  sum.seconds = std::max(sum.seconds, rank.seconds);
  for (const auto& [name, bytes] : rank.bytes_by_transport) sum.bytes_by_transport[name] += bytes;
}

}  // namespace

Result<DecodeReport> decode(comm::Transport& transport, const kvclient::Manifest& manifest,
                            const DecodeOptions& options) {
  return decode(transport, std::make_shared<kvclient::HandoverFeed>(manifest), options);
}

Result<DecodeReport> decode(comm::Transport& transport,
                            const std::shared_ptr<kvclient::HandoverFeed>& feed,
                            const DecodeOptions& options) {
  if (options.gpu && (options.attention != AttentionMode::kProgressive || options.tp != 1)) {
    return Error(Errc::kUnsupported, "a GPU decodes with progressive attention, on one rank");
  }
  if (options.gpu && !options.mlp.predictor_path.empty()) {
    return Error(Errc::kUnsupported,
                 "predicted neurons on a GPU: a CPU alone computes some of an MLP");
  }
  const auto deadline = Deadline::after(options.timeout);
  kvclient::PullClient client(transport, options.client);
  Node node{.transport = transport,
            .client = client,
            .feed = feed,
            .options = options,
            .deadline = deadline};
  auto group = comm::LocalGroup::create(options.tp);
  std::vector<Result<DecodeReport>> reports(
      group.size(), Result<DecodeReport>(Error(Errc::kInternal, "the rank did not run")));
  {
    std::vector<std::jthread> ranks;
    for (size_t r = 0; r < group.size(); ++r) {
      ranks.emplace_back([&, r] {
        const auto alone = comm::LocalGroup::create(1);
        reports[r] = RankRun(node, *group[r], *alone.front()).run();
        // A rank that failed must not leave the others waiting for it.
        if (!reports[r].ok()) group[r]->abort();
      });
    }
  }
  // The first failed rank's own error says more than what the others saw of it.
  for (const auto& report : reports) {
    if (!report.ok() && report.error().code != Errc::kPeerLost) return report.error();
  }
  DecodeReport total;
  for (auto& report : reports) {
    if (!report.ok()) return report.error();
    const bool is_first = &report == &reports.front();
    if (is_first || report->pull_began < total.pull_began) total.pull_began = report->pull_began;
    if (is_first) total.generate_began = report->generate_began;
    add(total.pulled, report->pulled);
    total.bytes_while_computing += report->bytes_while_computing;
    total.bytes_before_done += report->bytes_before_done;
    total.tail_s = std::max(total.tail_s, report->tail_s);
    total.hot_s = std::max(total.hot_s, report->hot_s);
    for (const uint64_t checksum : report->cache_checksums) {
      total.cache_checksums.push_back(checksum);
    }
    total.model_loads = std::max(total.model_loads, report->model_loads);
    total.generate_s = std::max(total.generate_s, report->generate_s);
    total.first_token_s = std::max(total.first_token_s, report->first_token_s);
    total.progressive.add(report->progressive);
    if (report->device_pages) total.device_pages = report->device_pages;
    if (report->mlp) {
      if (!total.mlp) total.mlp.emplace();
      total.mlp->add(*report->mlp);
    }
    total.token_ids = std::move(report->token_ids);
    total.finish_reason = report->finish_reason;
  }
  return total;
}

}  // namespace millrace::decode
