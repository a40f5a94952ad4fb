// SPDX-License-Identifier: Apache-2.0
// What a cache loses if only part of it is kept. Prompts are prefilled once, densely unless a head
// plan is given, then decoded over the whole cache and over the pages that each choice keeps.
// Decoding always follows the right answer.
//   kv_budget_quality --model DIR --input cases.jsonl [--budget 0.5 0.25 0.1] [--head-plan PLAN]
//     [--layered | --spans PLAN | --score-alone]
// A case: {"id", "kind", "prompt_token_ids", "forced_token_ids", "num_unjudged"}. The forced tokens
// follow the prompt; all but the first `num_unjudged` of them are judged: the model should choose
// them. Prints a line of JSON for each case and choice. Runs on a CPU and on one rank.
// bench/quality/kv_budget makes cases and tables.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <fstream>
#include <memory>

#include "bench/quality/column_mass.h"
#include "bench/quality/page_choices.h"
#include "comm/local/local_group.h"
#include "engine/ranks/rank_end.h"
#include "engine/runtime/rank_cli.h"
#include "model/generator.h"
#include "plan/head_plan.h"
#include "worker/sinks/budget_sink.h"
#include "worker/sinks/retain_sink.h"

namespace millrace::bench {

namespace {

namespace json = boost::json;

constexpr auto kTimeout = std::chrono::minutes(30);

struct Options {
  engine::RankOptions rank;
  std::string input;
  std::string head_plan = "dense";  // of the prefill
  std::vector<double> budgets = {0.5, 0.25, 0.1};
  bool layered = false;
  bool score_alone = false;
  std::string spans;  // a plan of elastic heads; adds further ways to choose pages, for comparison
};

struct Case {
  std::string id, kind;
  std::vector<int32_t> prompt, forced;
  int64_t num_unjudged = 0;
};

struct Choice {
  std::string name;
  double budget = 1;
  kvstore::PageChoice pages;  // empty: by score
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}

using NamedChoice = std::pair<const char*, kvstore::PageChoice>;

// Other choices than by score.
std::vector<NamedChoice> other_choices(const Options& options) {
  if (options.score_alone) return {};
  if (!options.layered) return {{"random", bench::keep_at_random}, {"window", bench::keep_newest}};
  return {{"alike", bench::keep_alike},
          {"pyramid", bench::keep_pyramid},
          {"first layers whole", bench::keep_first_layers}};
}

kvstore::PageScores mean(const kvstore::PageScores& one, const kvstore::PageScores& other) {
  auto both = one;
  for (size_t i = 0; i < both.values.size(); ++i) {
    both.values[i] = (one.values[i] + other.values[i]) / 2;
  }
  return both;
}

// `columns` must outlive the choices.
std::vector<NamedChoice> column_mass_and_spans(const bench::ColumnMass& columns,
                                               const plan::HeadPlan& plan, int64_t num_tokens) {
  const auto by_columns = [&](double budget, const kvstore::PageScores&) {
    return kvstore::choose_kept_pages(budget, columns.scores());
  };
  const auto by_both = [&](double budget, const kvstore::PageScores& scores) {
    return kvstore::choose_kept_pages(budget, mean(scores, columns.scores()));
  };
  return {{"column mass", by_columns},
          {"score and column mass", by_both},
          {"spans", bench::keep_spans(plan, num_tokens)}};
}

std::vector<Choice> at_each_budget(const std::vector<double>& budgets,
                                   const std::vector<NamedChoice>& others) {
  std::vector<Choice> choices;
  for (const double budget : budgets) {
    choices.push_back({.name = "score", .budget = budget, .pages = {}});
    for (const auto& [name, pages] : others) {
      choices.push_back({.name = name, .budget = budget, .pages = pages});
    }
  }
  return choices;
}

// The rows of the kept pages, contiguous for each layer and kv head.
class KeptRows {
 public:
  KeptRows(const std::vector<kernels::KvSlab>& slabs, const KeptPages& kept) {
    for (size_t layer = 0; layer < slabs.size(); ++layer) {
      for (int32_t head = 0; head < slabs[layer].num_kv_heads; ++head) {
        add(slabs[layer], head, kept.pages(static_cast<int32_t>(layer), head));
      }
    }
    for (size_t i = 0; i < heads_.size(); ++i) heads_[i].positions = positions_[i];
  }
  std::span<const model::PromptHead> heads() const { return heads_; }

 private:
  struct Rows {
    std::vector<std::byte> k, v;
  };
  void add(const kernels::KvSlab& slab, int32_t head, const std::vector<int64_t>& pages) {
    const int64_t row_bytes = slab.head_dim * dtype_bytes(slab.dtype);
    auto& positions = positions_.emplace_back();
    auto& [k, v] = *rows_.emplace_back(std::make_unique<Rows>());
    for (const int64_t page : pages) {
      const int64_t first = page * kPageTokens;
      const int64_t count = std::min(kPageTokens, slab.num_tokens - first);
      for (int64_t t = 0; t < count; ++t) positions.push_back(static_cast<int32_t>(first + t));
      const int64_t from = (head * slab.token_stride + first) * row_bytes;
      const auto append = [&](std::vector<std::byte>& to, const void* plane) {
        const auto* const rows = static_cast<const std::byte*>(plane) + from;
        to.insert(to.end(), rows, rows + count * row_bytes);
      };
      append(k, slab.k);
      append(v, slab.v);
    }
    const auto num_tokens = std::ssize(positions);
    heads_.push_back({.kv = {.k = k.data(),
                             .v = v.data(),
                             .dtype = slab.dtype,
                             .num_kv_heads = 1,
                             .head_dim = slab.head_dim,
                             .num_tokens = num_tokens,
                             .token_stride = num_tokens},
                      .positions = {}});
  }

  std::vector<std::unique_ptr<Rows>> rows_;  // heads_ points to them
  std::vector<std::vector<int32_t>> positions_;
  std::vector<model::PromptHead> heads_;
};

class Study {
 public:
  Study(engine::RankRuntime& runtime, const Options& options)
      : runtime_(runtime), options_(options) {}

  void run(const Case& one) {
    const auto& config = runtime_.weights().config;
    const auto num_tokens = std::ssize(one.prompt);
    if (options_.spans.empty()) {
      return run(one, at_each_budget(options_.budgets, other_choices(options_)), {});
    }
    bench::ColumnMass columns(config.num_layers, config.num_kv_heads, num_tokens,
                              kernels::cpu::fastest_context(1));
    const auto plan = must(plan::make_head_plan(options_.spans, config, num_tokens, 0, {}));
    const auto others = column_mass_and_spans(columns, plan, num_tokens);
    run(one, at_each_budget(options_.budgets, others),
        [&](const engine::BuiltIndex& layer) { columns.add(layer); });
  }

 private:
  void run(const Case& one, const std::vector<Choice>& choices, const engine::IndexTap& tap) {
    const auto& weights = runtime_.weights();
    const auto num_tokens = std::ssize(one.prompt);
    auto retained = must(worker::RetainSink::create(runtime_.device(), weights, num_tokens,
                                                    runtime_.kv_scales().get()));
    // Each sink passes the layers on to the one before it.
    std::vector<std::unique_ptr<worker::BudgetSink>> sinks;
    for (const Choice& choice : choices) {
      engine::KvSink* const inner =
          sinks.empty() ? static_cast<engine::KvSink*>(&retained) : sinks.back().get();
      sinks.push_back(std::make_unique<worker::BudgetSink>(choice.budget, weights, num_tokens,
                                                           inner, choice.pages));
    }
    const auto plan =
        must(plan::make_head_plan(options_.head_plan, weights.config, num_tokens, 0, {}));
    const auto prefilled = must(runtime_.engine().prefill(
        {.token_ids = one.prompt, .plan = &plan, .sink = sinks.back().get(), .index_tap = tap},
        kTimeout));
    print(one, {.name = "full"}, prefilled.density, 0, decode(one, {.prompt = retained.slabs()}));
    for (size_t i = 0; i < choices.size(); ++i) {
      const auto chosen = must(sinks[i]->choose(runtime_.grid().tp(), Deadline::after(kTimeout)));
      const KeptRows rows(retained.slabs(), chosen.kept);
      print(one, choices[i], prefilled.density, chosen.dropped_mass,
            decode(one, {.heads = rows.heads()}));
    }
  }

  // Returns how many of the judged tokens it would choose.
  int64_t decode(const Case& one, model::GenerateRequest request) {
    const auto& grid = runtime_.grid();
    const auto num_forced = static_cast<int32_t>(one.forced.size());
    auto generator = must(model::Generator::create(runtime_.device(), runtime_.weights(), grid.tp(),
                                                   grid.cp(), num_forced));
    request.num_prompt_tokens = std::ssize(one.prompt);
    request.first_token = one.forced.front();
    request.follow = std::span(one.forced).subspan(1);
    request.max_tokens = num_forced;
    request.ignore_eos = true;
    const auto chosen = must(generator.generate(request, [] { return Deadline::after(kTimeout); }));
    int64_t right = 0;
    for (size_t i = static_cast<size_t>(one.num_unjudged); i < one.forced.size(); ++i) {
      right += chosen[i] == one.forced[i];
    }
    return right;
  }

  void print(const Case& one, const Choice& choice, double density, double dropped_mass,
             int64_t right) const {
    const json::object line = {{"id", one.id},
                               {"kind", one.kind},
                               {"prompt_tokens", one.prompt.size()},
                               {"head_plan", options_.head_plan},
                               {"density", density},
                               {"choice", choice.name},
                               {"budget", choice.budget},
                               {"dropped_mass", dropped_mass},
                               {"judged", std::ssize(one.forced) - one.num_unjudged},
                               {"right", right}};
    fmt::print("{}\n", json::serialize(line));
    std::fflush(stdout);
  }

  engine::RankRuntime& runtime_;
  const Options& options_;
};

int run(Options& options) {
  auto world = comm::LocalGroup::create(1);
  const auto runtime = must(engine::RankRuntime::create(std::move(world.front()), options.rank));
  MR_CHECK(runtime->device().info().host_memory, "rows are copied on a CPU");
  Study study(*runtime, options);
  std::ifstream file(options.input);
  for (std::string text; std::getline(file, text);) {
    const auto line = json::parse(text).as_object();
    study.run({.id = json::value_to<std::string>(line.at("id")),
               .kind = json::value_to<std::string>(line.at("kind")),
               .prompt = json::value_to<std::vector<int32_t>>(line.at("prompt_token_ids")),
               .forced = json::value_to<std::vector<int32_t>>(line.at("forced_token_ids")),
               .num_unjudged = line.at("num_unjudged").to_number<int64_t>()});
  }
  return 0;
}

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  options.rank.engine.end_process = millrace::engine::end_rank;
  CLI::App app("Decodes over caches that are kept in part.", "kv_budget_quality");
  millrace::engine::add_rank_options(app, options.rank);
  app.add_option("--input", options.input)->required();
  app.add_option("--budget", options.budgets)->check(CLI::Range(0.001, 1.0));
  app.add_option("--head-plan", options.head_plan, "of the prefill; default: dense");
  app.add_flag("--score-alone", options.score_alone, "compare no other choice of pages");
  app.add_flag("--layered", options.layered,
               "compare budgets by layer and head instead of random pages and the newest");
  app.add_option(
      "--spans", options.spans,
      "compare other means: column mass of the whole prompt, and the spans of this plan");
  options.rank.device = {.kind = millrace::engine::DeviceChoice::Kind::kCpu};
  CLI11_PARSE(app, argc, argv);
  return millrace::bench::run(options);
}
