// SPDX-License-Identifier: Apache-2.0
// Compares progressive attention with dense attention, and with a fixed number of pages (Quest), on
// one handed-over cache:
//   decode_pages_bench --manifest response.json --model DIR [--tokens 32] [--mass 0.98 0.95]
//     [--budget 0.25] [--follow right.json] [--pages-share 0.1 0.2]
// Dense attention runs first and chooses the tokens, unless --follow gives the right ones. The other
// runs decode the same tokens, so that each step chooses after the same text. Prints a line of JSON
// for each run; `right`: choices that are the right tokens.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
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
  std::string follow;           // a file: JSON list of tokens, the first instead of the prefill's
  std::vector<double> shares;   // of a head's pages: fixed numbers of pages to attend to
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

// PSA's rule as published (arXiv 2503.00392, algorithm 1): each page left has the least mass of any
// page so far, of those that were ranked.
class LeastMassRule final : public kernels::PageRule {
 public:
  explicit LeastMassRule(double mass)
      : log_odds_(static_cast<float>(std::log((1 - mass) / mass))) {}
  bool enough(const kernels::RuleView& view) const override {
    if (view.num_attended <= view.num_leading) return false;
    float least = std::numeric_limits<float>::infinity();
    for (int64_t i = view.num_leading; i < view.num_attended; ++i) {
      const auto page = static_cast<size_t>(view.order[static_cast<size_t>(i)]);
      least = std::min(least, view.log_mass[page]);
    }
    const auto left = static_cast<float>(std::ssize(view.order) - view.num_attended);
    return least + std::log(left) <= view.log_attended + log_odds_;
  }

 private:
  const float log_odds_;
};

std::vector<int32_t> read_tokens(const std::string& path) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return json::value_to<std::vector<int32_t>>(json::parse(text));
}

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
    if (!options_.follow.empty()) {
      followed_ = read_tokens(options_.follow);
      manifest_.first_token_id = followed_.front();
    }
    reference_ = must(decode::decode(transport_, manifest_, decode_options())).token_ids;
    if (followed_.empty()) followed_ = reference_;
    if (!options_.shares.empty()) return measure_shares();
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
            .follow = followed_};
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

  // Rules of a mass beside fixed numbers of pages: at which number is the latter as good?
  void measure_shares() {
    auto wanted = progressive();
    for (const double mass : options_.masses) {
      wanted.progressive.mass = mass;
      wanted.progressive.rule = nullptr;
      compare(fmt::format("estimate {}", mass), wanted);
      wanted.progressive.rule = std::make_shared<LeastMassRule>(mass);
      compare(fmt::format("least mass {}", mass), wanted);
    }
    for (const double share : options_.shares) {
      const auto count = static_cast<int64_t>(
          std::ceil(share * static_cast<double>(manifest_.num_pages()) - 1e-9));
      wanted.progressive.rule = std::make_shared<TopPages>(count);
      compare(fmt::format("fixed {} (Quest)", share), wanted);
      wanted.progressive.rule = std::make_shared<TopRanked>(count);
      compare(fmt::format("fixed {} (same order)", share), wanted);
    }
  }

  decode::DecodeReport compare(const std::string& name, const decode::DecodeOptions& wanted,
                               json::object more = {}) {
    const auto report = must(decode::decode(transport_, manifest_, wanted));
    int64_t equal = 0;
    int64_t right = 0;
    int64_t dense_right = 0;
    for (size_t i = 1; i < report.token_ids.size(); ++i) {
      equal += report.token_ids[i] == reference_[i];
      right += report.token_ids[i] == followed_[i];
      dense_right += reference_[i] == followed_[i];
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
        {"right", right},
        {"dense_right", dense_right},
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
  kvclient::Manifest manifest_;
  comm::TcpTransport transport_{{}};
  std::vector<int32_t> reference_;  // dense attention's choices
  std::vector<int32_t> followed_;   // empty: dense attention has not yet chosen
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
  app.add_option("--follow", options.follow);
  app.add_option("--pages-share", options.shares)->check(CLI::Range(0.001, 1.0));
  app.add_flag("--start", options.start);
  app.add_flag("--skip-bound", options.skip_bound);
  app.add_option("--repeats", options.repeats);
  CLI11_PARSE(app, argc, argv);
  millrace::init_logging("decode-pages-bench");
  millrace::bench::Bench(options).run();
  return 0;
}
