#include "decode/decode_node.h"

#include <algorithm>
#include <thread>

#include "comm/local/local_group.h"
#include "decode/pulled_cache.h"
#include "kernels/cpu/cpu_device.h"
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

// One rank from pulling to the last token.
Result<DecodeReport> run_rank(kvclient::PullClient& client, const kvclient::Manifest& manifest,
                              const std::shared_ptr<kvclient::HandoverFeed>& feed,
                              const DecodeOptions& options, comm::Communicator& tp,
                              comm::Communicator& alone, Deadline deadline) {
  const auto device = kernels::make_cpu_device({.num_threads = options.threads_per_rank});
  // Where the cache is float16, which a CPU has no products of, float32 holds its weights exactly.
  const bool bfloat16 = find_dtype(manifest.layout.dtype) == DType::kBFloat16;
  const DType dtype = bfloat16 ? DType::kBFloat16 : DType::kFloat32;
  MR_ASSIGN_OR_RETURN(const auto weights,
                      model::load_model_weights(options.model_directory, {tp.rank(), tp.size()},
                                                dtype, *device, options.threads_per_rank));
  MR_RETURN_IF_ERROR(check_model(*weights, manifest, options.any_weights));

  MR_ASSIGN_OR_RETURN(const auto cache,
                      PulledCache::pull(client, manifest, feed, weights->shard, *device,
                                        {options.order, options.hot_share}, deadline));
  MR_ASSIGN_OR_RETURN(const auto result, feed->wait_for_result(deadline));
  DecodeReport report{.pulled = cache.stats(),
                      .bytes_while_computing = cache.timeline().bytes_while_computing,
                      .bytes_before_done = cache.timeline().bytes_before_done,
                      .tail_s = tail_s(cache.timeline(), feed->done_at()),
                      .hot_s = cache.timeline().hot_s,
                      .cache_checksums = {cache.checksum()}};
  Stopwatch watch;
  MR_ASSIGN_OR_RETURN(auto generator,
                      model::Generator::create(*device, *weights, tp, alone, options.max_tokens));
  MR_ASSIGN_OR_RETURN(report.token_ids,
                      generator.generate({.prompt = cache.slabs(),
                                          .num_prompt_tokens = manifest.num_tokens,
                                          .first_token = result.first_token_id,
                                          .max_tokens = options.max_tokens,
                                          .ignore_eos = options.ignore_eos},
                                         [deadline] { return deadline; }));
  report.finish_reason =
      model::finish_reason(report.token_ids, weights->config, options.ignore_eos);
  report.generate_s = watch.elapsed_s();
  return report;
}

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
  const auto deadline = Deadline::after(options.timeout);
  MR_ASSIGN_OR_RETURN(const auto manifest, feed->wait_for_manifest(deadline));
  MR_RETURN_IF_ERROR(kvclient::check_manifest(manifest));
  kvclient::PullClient client(transport, options.client);
  auto group = comm::LocalGroup::create(options.tp);
  std::vector<Result<DecodeReport>> reports(
      group.size(), Result<DecodeReport>(Error(Errc::kInternal, "the rank did not run")));
  {
    std::vector<std::jthread> ranks;
    for (size_t r = 0; r < group.size(); ++r) {
      ranks.emplace_back([&, r] {
        const auto alone = comm::LocalGroup::create(1);
        reports[r] = run_rank(client, manifest, feed, options, *group[r], *alone.front(), deadline);
        // A rank that failed must not leave the others waiting for it.
        if (!reports[r].ok()) group[r]->abort();
      });
    }
  }
  // What made the first rank fail says more than what the others saw of it.
  for (const auto& report : reports) {
    if (!report.ok() && report.error().code != Errc::kPeerLost) return report.error();
  }
  DecodeReport total;
  for (auto& report : reports) {
    if (!report.ok()) return report.error();
    add(total.pulled, report->pulled);
    total.bytes_while_computing += report->bytes_while_computing;
    total.bytes_before_done += report->bytes_before_done;
    total.tail_s = std::max(total.tail_s, report->tail_s);
    total.hot_s = std::max(total.hot_s, report->hot_s);
    total.cache_checksums.push_back(report->cache_checksums.front());
    total.generate_s = std::max(total.generate_s, report->generate_s);
    total.token_ids = std::move(report->token_ids);
    total.finish_reason = report->finish_reason;
  }
  return total;
}

}  // namespace millrace::decode
