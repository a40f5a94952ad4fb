// SPDX-License-Identifier: Apache-2.0
// Compares progressive attention with dense attention, and with a fixed number of pages (Quest), on
// one handed-over cache:
//   decode_pages_bench --manifest response.json --model DIR [--tokens 32] [--mass 0.98 0.95]
//     [--budget 0.25] [--order hot]
// Dense attention runs first and chooses the tokens. The other runs decode the same tokens, so that
// each step chooses after the same text. Prints a line of JSON for each run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <memory>

#include "comm/tcp/tcp_transport.h"
#include "common/check.h"
#include "common/log.h"
#include "common/logging/init_logging.h"
#include "common/system/cpu.h"
#include "decode/decode_node.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::bench {

namespace {

namespace json = boost::json;

struct Options {
  std::string manifest, model;
  int32_t tokens = 32;
  std::vector<double> masses = {0.98};
  std::vector<double> budgets;  // shares of all pages
  bool start = false;           // measure times to the first token
  bool skip_bound = false;
  bool same_host = true;  // copy pages of ranks on this host from their memory
  int repeats = 3;
};

// Quest (arXiv 2406.10774): the pages with the greatest bounds, the same number for every head,
// including the last page. Only this benchmark needs it: the product has no fixed number of pages.
class TopPages final : public kernels::PageRule {
 public:
  explicit TopPages(int64_t count) : count_(count) {}
  float rank(const kernels::PageEstimate& estimate) const override { return estimate.box; }
  bool leads(int64_t page, int64_t num_pages) const override { return page == num_pages - 1; }
  int64_t portion(int64_t num_attended) const override { return count_ - num_attended; }
  bool enough(const kernels::RuleView&) const override { return true; }

 private:
  const int64_t count_;
};

// The same number of pages for every head, in the order of progressive attention: the difference
// from it shows what the threshold alone brings.
class TopRanked final : public kernels::PageRule {
 public:
  explicit TopRanked(int64_t count) : count_(count) {}
  int64_t portion(int64_t num_attended) const override { return count_ - num_attended; }
  bool enough(const kernels::RuleView&) const override { return true; }

 private:
  const int64_t count_;
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), manifest_(must(kvclient::read_manifest(options.manifest))) {}

  void run() {
    reference_ = must(decode::decode(transport_, manifest_, decode_options())).token_ids;
    for (const double mass : options_.masses) {
      auto wanted = progressive();
      wanted.progressive.mass = mass;
      const auto by_estimate = compare(fmt::format("estimate {}", mass), wanted);
      if (!options_.skip_bound) {
        wanted.progressive.proven = true;
        compare(fmt::format("bound {}", mass), wanted);
      }
      const int64_t heads = by_estimate.progressive.layer_pages / manifest_.num_pages();
      const double per_head = static_cast<double>(touched(by_estimate)) /
                              static_cast<double>(by_estimate.progressive.attention.steps *
                                                  manifest_.layout.num_layers * heads);
      const auto count = static_cast<int64_t>(std::ceil(per_head));
      wanted.progressive.rule = std::make_shared<TopPages>(count);
      compare(fmt::format("top {} (Quest)", count), wanted);
      wanted.progressive.rule = std::make_shared<TopRanked>(count);
      compare(fmt::format("top {} (same order)", count), wanted);
    }
    for (const double budget : options_.budgets) measure_budget(budget);
    if (options_.start) measure_start();
  }

 private:
  decode::DecodeOptions decode_options() const {
    return {.model_directory = options_.model,
            .threads_per_rank = usable_cores(),
            .max_tokens = options_.tokens,
            .ignore_eos = true,
            .client = {.same_host = options_.same_host},
            .follow = reference_};
  }
  decode::DecodeOptions progressive() const {
    auto wanted = decode_options();
    wanted.attention = decode::AttentionMode::kProgressive;
    return wanted;
  }
  static int64_t touched(const decode::DecodeReport& report) {
    int64_t sum = 0;
    for (const int64_t pages : report.progressive.attention.pages_touched) sum += pages;
    return sum;
  }

  decode::DecodeReport compare(const std::string& name, const decode::DecodeOptions& wanted,
                               json::object more = {}) {
    const auto report = must(decode::decode(transport_, manifest_, wanted));
    int64_t equal = 0;
    for (size_t i = 1; i < report.token_ids.size(); ++i) {
      equal += report.token_ids[i] == reference_[i];
    }
    const auto& paged = report.progressive;
    json::array density;
    decode::PoolCounts counts;
    for (size_t layer = 0; layer < paged.pool.layers.size(); ++layer) {
      density.emplace_back(static_cast<double>(paged.attention.pages_touched[layer]) /
                           static_cast<double>(paged.attention.steps * paged.layer_pages));
      counts.add(paged.pool.layers[layer]);
    }
    const int64_t pages_in_all = paged.layer_pages * manifest_.layout.num_layers;
    json::object line = {
        {"name", name},
        {"prompt_tokens", manifest_.num_tokens},
        {"tokens", report.token_ids.size() - 1},
        {"equal", equal},
        {"density", pages_in_all == 0
                        ? 1.0
                        : static_cast<double>(touched(report)) /
                              static_cast<double>(paged.attention.steps * pages_in_all)},
        {"density_by_layer", std::move(density)},
        {"pages_read", touched(report)},
        {"pages_in_all", pages_in_all},
        {"pool_pages", paged.num_slots},
        {"hits", counts.hits},
        {"predicted_hits", counts.predicted},
        {"late", counts.late},
        {"misses", counts.misses},
        {"predicted_pages", paged.pool.predicted_pages},
        {"needed_pages", paged.pool.needed_pages},
        {"filled_pages", paged.pool.filled_pages},
        {"foreseen", paged.lookahead.pages_read == 0
                         ? 0.0
                         : static_cast<double>(paged.lookahead.pages_foreseen) /
                               static_cast<double>(paged.lookahead.pages_read)},
        {"predictions", paged.lookahead.made},
        {"predictions_dropped", paged.lookahead.dropped},
        {"pulled_bytes", report.pulled.bytes},
        {"digest_bytes", paged.intake.digest_bytes},
        {"digests_s", paged.intake.digests_s},
        {"generate_s", report.generate_s},
        {"first_token_s", report.first_token_s}};
    for (auto& [key, value] : more) line[key] = value;
    std::printf("%s\n", json::serialize(line).c_str());
    std::fflush(stdout);
    return report;
  }

  void measure_budget(double budget) {
    auto wanted = progressive();
    const int64_t pages =
        manifest_.num_pages() * manifest_.layout.num_layers * manifest_.layout.num_kv_heads;
    for (const auto eviction : {decode::Eviction::kLeastUsed, decode::Eviction::kLeastRecent}) {
      for (const bool predict : {false, true}) {
        wanted.progressive.pages_memory_bytes =
            static_cast<int64_t>(budget * static_cast<double>(pages)) * manifest_.page_bytes();
        wanted.progressive.eviction = eviction;
        wanted.progressive.predict = predict;
        compare(
            fmt::format("memory {} {}{}", budget,
                        eviction == decode::Eviction::kLeastUsed ? "least used" : "least recent",
                        predict ? ", predicted" : ""),
            wanted, {{"budget", budget}, {"predict", predict}});
      }
    }
  }

  // Two tokens: the prefill's, and the first one that is decoded.
  void measure_start() {
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      auto wanted = decode_options();
      wanted.max_tokens = 2;
      compare("start dense", wanted);
      wanted.attention = decode::AttentionMode::kProgressive;
      for (const auto& [name, start] : {std::pair("start need", decode::DecodeStart::kNeed),
                                        std::pair("start hot", decode::DecodeStart::kHot),
                                        std::pair("start whole", decode::DecodeStart::kWhole)}) {
        wanted.progressive.start = start;
        compare(name, wanted);
      }
    }
  }

  const Options options_;
  const kvclient::Manifest manifest_;
  comm::TcpTransport transport_{{}};
  std::vector<int32_t> reference_;
};

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app("Progressive attention beside dense attention and a fixed number of pages");
  app.add_option("--manifest", options.manifest)->required();
  app.add_option("--model", options.model)->required();
  app.add_flag("!--no-same-host", options.same_host);
  app.add_option("--tokens", options.tokens);
  app.add_option("--mass", options.masses);
  app.add_option("--budget", options.budgets);
  app.add_flag("--start", options.start);
  app.add_flag("--skip-bound", options.skip_bound);
  app.add_option("--repeats", options.repeats);
  CLI11_PARSE(app, argc, argv);
  millrace::init_logging("decode-pages-bench");
  millrace::bench::Bench(options).run();
  return 0;
}
