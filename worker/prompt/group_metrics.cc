// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/group_metrics.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "engine/ranks/rank_values.h"

namespace millrace::worker {

namespace {

class Samples {
 public:
  void add(bool counter, std::string name, std::string help, double value,
           const std::map<std::string, std::string>& labels = {}) {
    auto& metric = metrics_.emplace_back();
    metric.set_name(std::move(name));
    metric.set_help(std::move(help));
    metric.set_counter(counter);
    metric.set_value(value);
    metric.mutable_labels()->insert(labels.begin(), labels.end());
  }
  std::vector<protocol::Metric> take() { return std::move(metrics_); }

 private:
  std::vector<protocol::Metric> metrics_;
};

template <typename Read>
double sum(const std::vector<RankStats>& ranks, Read&& read) {
  double total = 0;
  for (const auto& rank : ranks) total += static_cast<double>(read(rank));
  return total;
}

void add_tiers(Samples& samples, const std::vector<RankStats>& ranks) {
  for (const Tier tier : kTiers) {
    const std::map<std::string, std::string> labels = {{"tier", std::string(tier_name(tier))}};
    samples.add(false, "millrace_kv_pool_capacity_bytes", "Size of the KV pool of a tier",
                sum(ranks,
                    [&](const auto& r) {
                      const auto& use = r.store.tiers[tier];
                      return use.slots_total * use.slot_bytes;
                    }),
                labels);
    samples.add(false, "millrace_kv_pool_used_bytes", "KV pool bytes that hold pages",
                sum(ranks,
                    [&](const auto& r) {
                      const auto& use = r.store.tiers[tier];
                      return use.slots_used * use.slot_bytes;
                    }),
                labels);
    samples.add(true, "millrace_kv_page_reads_total", "Pages read for decode nodes, by tier",
                sum(ranks, [&](const auto& r) { return r.store.page_hits[tier]; }), labels);
  }
}

void add_moves(Samples& samples, const std::vector<RankStats>& ranks) {
  for (const Tier from : kTiers) {
    for (const Tier to : kTiers) {
      if (from == to) continue;
      samples.add(true, "millrace_kv_page_moves_total", "Pages copied between tiers",
                  sum(ranks, [from, to](const auto& r) { return r.store.moves[from][to]; }),
                  {{"from", std::string(tier_name(from))}, {"to", std::string(tier_name(to))}});
    }
  }
  samples.add(true, "millrace_kv_read_ahead_pages_total",
              "Pages read from disk before a decode node asked for them",
              sum(ranks, [](const auto& r) { return r.store.read_ahead_pages; }));
  samples.add(true, "millrace_kv_read_ahead_hits_total",
              "Pages read ahead that a decode node then asked for",
              sum(ranks, [](const auto& r) { return r.store.read_ahead_hits; }));
}

void add_load(Samples& samples, const std::vector<RankStats>& ranks, const std::string& from,
              const std::function<kvstore::ReadTotals(const RankStats&)>& totals) {
  const std::map<std::string, std::string> labels = {{"from", from}};
  samples.add(true, "millrace_prefix_cache_load_bytes_total",
              "Bytes of cached pages read for prompts, by where from",
              sum(ranks, [&](const auto& r) { return totals(r).bytes; }), labels);
  samples.add(
      true, "millrace_prefix_cache_load_seconds_total",
      "Seconds that this took: of threads that bring pages to the engine, of time for reads "
      "ahead of that",
      sum(ranks, [&](const auto& r) { return totals(r).seconds; }), labels);
}

void add_loads(Samples& samples, const std::vector<RankStats>& ranks) {
  for (const Tier tier : kTiers) {
    samples.add(true, "millrace_prefix_cache_hit_pages_total",
                "Cached pages that prompts began with, by where they lay",
                sum(ranks,
                    [tier](const auto& r) {
                      const int64_t page_bytes = r.store.tiers[tier].slot_bytes;
                      return page_bytes == 0 ? 0 : r.prefix_loads[tier].bytes / page_bytes;
                    }),
                {{"tier", std::string(tier_name(tier))}});
    add_load(samples, ranks, std::string(tier_name(tier)),
             [tier](const RankStats& r) { return r.prefix_loads[tier]; });
  }
  add_load(samples, ranks, "disk-check", [](const RankStats& r) { return r.store.disk_checks; });
  add_load(samples, ranks, "kept", [](const RankStats& r) { return r.store.kept_reads; });
}

void add_evictions(Samples& samples, const std::vector<RankStats>& ranks) {
  const auto add = [&](const char* reason, const auto& read) {
    samples.add(true, "millrace_prefix_cache_evictions_total",
                "Cached pages that gave way, by what for", sum(ranks, read), {{"reason", reason}});
  };
  add("prompt", [](const auto& r) { return r.store.cache_evictions.for_requests; });
  add("kept", [](const auto& r) { return r.store.cache_evictions.for_kept; });
  add("files", [](const auto& r) { return r.store.cache_evictions.in_files; });
  add("replaced", [](const auto& r) { return r.store.cache_replacements; });
}

void add_cache(Samples& samples, const std::vector<RankStats>& ranks) {
  samples.add(true, "millrace_prefix_cache_queried_tokens_total",
              "Prompt tokens of requests that read the prefix cache",
              sum(ranks, [](const auto& r) { return r.cache_queried_tokens; }));
  samples.add(true, "millrace_prefix_cache_hit_tokens_total",
              "Prompt tokens that were cached and not computed",
              sum(ranks, [](const auto& r) { return r.cache_hit_tokens; }));
  samples.add(true, "millrace_prefix_cache_uneconomic_tokens_total",
              "Prompt tokens that were cached on a slow tier, and computed since that was faster",
              sum(ranks, [](const auto& r) { return r.cache_uneconomic_tokens; }));
  for (const Tier tier : kTiers) {
    samples.add(false, "millrace_prefix_cache_bytes",
                "KV pool bytes of pages that later prompts may begin with",
                sum(ranks,
                    [&](const auto& r) {
                      const auto& use = r.store.tiers[tier];
                      return use.slots_cached * use.slot_bytes;
                    }),
                {{"tier", std::string(tier_name(tier))}});
  }
  samples.add(false, "millrace_prefix_cache_idle_bytes",
              "Of the prefix cache, pages that no lease and no prompt holds: they give way",
              sum(ranks, [](const auto& r) {
                return r.store.idle_cached_pages * r.store.tiers[Tier::kHost].slot_bytes;
              }));
  add_evictions(samples, ranks);
  add_loads(samples, ranks);
  samples.add(true, "millrace_prefix_cache_corruptions_total",
              "Cached pages forgotten because one did not match its checksum",
              sum(ranks, [](const auto& r) { return r.store.cache_corruptions; }));
  samples.add(false, "millrace_prefix_cache_kept_bytes",
              "Cached pages on disk that the group's next start finds",
              sum(ranks, [](const auto& r) { return r.store.kept_bytes; }));
  samples.add(true, "millrace_prefix_cache_kept_pages_total",
              "Cached pages written to disk for the group's next start",
              sum(ranks, [](const auto& r) { return r.store.pages_kept; }));
  samples.add(true, "millrace_prefix_cache_restored_pages_total",
              "Kept pages that were read from disk for a prompt",
              sum(ranks, [](const auto& r) { return r.store.pages_restored; }));
  samples.add(true, "millrace_prefix_cache_late_restores_total",
              "Times that reading kept pages was left, since to compute the rest takes no longer",
              sum(ranks, [](const auto& r) { return r.store.late_restores; }));
}

void add_collectives(Samples& samples, const std::vector<RankStats>& ranks, const char* grid,
                     comm::CommStats RankStats::*stats) {
  samples.add(true, "millrace_collective_bytes_received_total",
              "Bytes received in collectives, by grid dimension",
              sum(ranks, [stats](const auto& r) { return (r.*stats).bytes_received; }),
              {{"grid", grid}});
  samples.add(true, "millrace_collective_seconds_total",
              "Rank seconds inside collectives, by grid dimension",
              sum(ranks, [stats](const auto& r) { return (r.*stats).seconds; }), {{"grid", grid}});
}

}  // namespace

Result<std::vector<RankStats>> gather_stats(comm::Communicator& world, const RankStats& own,
                                            Deadline deadline) {
  return engine::gather_values(world, own, deadline);
}

std::vector<protocol::Metric> group_metrics(const std::vector<RankStats>& ranks,
                                            const LeaseCounts& leases) {
  Samples samples;
  add_tiers(samples, ranks);
  samples.add(true, "millrace_kv_pages_written_total", "KV pages written by prefill",
              sum(ranks, [](const auto& r) { return r.store.pages_written; }));
  samples.add(true, "millrace_kv_evictions_total", "Device copies of pages evicted",
              sum(ranks, [](const auto& r) { return r.store.evictions; }));
  add_cache(samples, ranks);
  add_moves(samples, ranks);
  for (int carrier = 0; carrier < comm::kNumCarriers; ++carrier) {
    samples.add(
        true, "millrace_kv_bytes_sent_total", "Bytes of KV sent to decode nodes, by transport",
        sum(ranks, [carrier](const auto& r) { return r.transport.bytes_sent_over[carrier]; }),
        {{"transport", std::string(comm::carrier_name(static_cast<comm::Carrier>(carrier)))}});
  }
  samples.add(true, "millrace_kv_requests_total", "Page requests from decode nodes",
              sum(ranks, [](const auto& r) { return r.transport.requests; }));
  samples.add(true, "millrace_kv_failures_total", "Page requests that failed in transport",
              sum(ranks, [](const auto& r) { return r.transport.failures; }));
  samples.add(true, "millrace_kv_connections_refused_total",
              "Connections to KV ports that were not let in",
              sum(ranks, [](const auto& r) { return r.transport.refused; }));
  samples.add(false, "millrace_leases", "Leases on finished caches",
              static_cast<double>(leases.active));
  samples.add(false, "millrace_kv_unread_bytes",
              "KV of finished caches under a lease that no decode node has read from yet",
              sum(ranks, [](const auto& r) {
                return r.store.unread_pages * r.store.tiers[Tier::kHost].slot_bytes;
              }));
  samples.add(true, "millrace_leases_expired_total", "Leases that ended without a release",
              static_cast<double>(leases.expired));
  samples.add(false, "millrace_attention_imbalance_ratio",
              "Maximum over mean of the ranks' attention work in the last prompt",
              ranks.front().attention_imbalance);
  add_collectives(samples, ranks, "tp", &RankStats::tp);
  add_collectives(samples, ranks, "cp", &RankStats::cp);
  return samples.take();
}

double eviction_clock(const std::vector<RankStats>& ranks) {
  double latest = 0;
  for (const auto& rank : ranks) latest = std::max(latest, rank.store.eviction_clock);
  return latest;
}

int64_t free_prompt_tokens(const std::vector<RankStats>& ranks) {
  const auto fullest = std::min_element(
      ranks.begin(), ranks.end(),
      [](const auto& a, const auto& b) { return a.free_prompt_tokens < b.free_prompt_tokens; });
  return fullest->free_prompt_tokens;
}

}  // namespace millrace::worker
